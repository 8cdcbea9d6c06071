"""Two results of `run.py`, step by step and cell by cell.

    python experiments/gpu/compare.py A/results.json B/results.json

Which is which comes first, then what differs of the machines, steps that B fails and A passed, what each step found,
and cell by cell the times: above 1 B is faster. Rows that only one of them has are named. Exit status 1 where B fails a
step that A passed, 2 where the files cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from headlines import headline

_CELL = ("backend", "cell", "kv_dtype", "layout")
_SAME = ("device", "driver_version", "torch", "cuda", "clocks.max.sm")


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    options = parser.parse_args()
    try:
        a, b = (_read(path) for path in (options.a, options.b))
    except (OSError, ValueError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    print(f"A: {_name(a)}: {options.a}\nB: {_name(b)}: {options.b}")
    print("\n".join(lines(a, b)) or "nothing to compare: the results have no rows")
    return 1 if regressions(a, b) else 0


def _read(path: Path) -> dict[str, Any]:
    """A result.

    Raises:
        OSError, ValueError: no file, or not of `run.py`.
    """
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("parts", {}), dict) or "versions" not in found:
        raise ValueError(f"{path} is no results.json of run.py")
    return found


def _name(results: dict[str, Any]) -> str:
    device = next((row.get("device") for row in _rows(results, "machine", ("device",)).values()), None)
    commit = (results.get("commit") or "no commit")[:9]
    dry = ", dry run" if results.get("dry_run") else ""
    return f"{results.get('date')}, {commit}, {device or 'no device'}{dry}"


def lines(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    """What differs of the machines, of steps, of cells and of serving."""
    if a.get("dry_run") or b.get("dry_run"):
        yield "one of these is a dry run: its numbers mean nothing"
    yield from (f"unlike machines: {name}: {old} | {new}" for name, old, new in _machines(a, b) if old != new)
    yield from regressions(a, b)
    old_found, new_found = _headlines(a), _headlines(b)
    yield from (f"{name}: {old_found[name]} | {new_found[name]}" for name in old_found if name in new_found)
    for part, key, rate in (
        ("grid", _CELL, "share_of_ceiling"),
        ("serve", ("backend", "mode"), "output_tokens_per_s"),
    ):
        old, new = _rows(a, part, key), _rows(b, part, key)
        for name in sorted(set(old) | set(new)):
            yield _line(part, name, old.get(name), new.get(name), rate)


def regressions(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Steps that A passed and B did not."""
    old, new = _statuses(a), _statuses(b)
    return [f"{name}: ok | {new[name]}" for name in old if old[name] == "ok" and new.get(name, "ok") != "ok"]


def _line(part: str, name: str, old: dict[str, Any] | None, new: dict[str, Any] | None, rate: str) -> str:
    if old is None or new is None:
        return f"{part} {name}: only in {'B' if old is None else 'A'}"
    if old.get(rate) is None or new.get(rate) is None:
        return f"{part} {name}: {old.get('status')} | {new.get('status')}"
    seconds = [row.get("time_s") or 1 / row[rate] for row in (old, new)]
    return f"{part} {name}: {rate} {old[rate]:.4g} | {new[rate]:.4g}; B is {seconds[0] / seconds[1]:.3f} times as fast"


def _rows(results: dict[str, Any], part: str, key: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    rows = [row for step in results.get("parts", {}).get(part, []) for row in step.get("rows", [])]
    named = [{"mode": "eager" if row.get("eager") else "with graphs where it can", **row} for row in rows]
    return {" ".join(str(row[name]) for name in key if row.get(name) is not None): row for row in named}


def _headlines(results: dict[str, Any]) -> dict[str, str]:
    """What each step found in a few words; of the grid and of serving every row is compared instead."""
    return {
        f"{part} {step['step']}": clause
        for part, steps in results.get("parts", {}).items()
        if part not in ("grid", "serve")
        for step in steps
        if (clause := headline(part, step))
    }


def _statuses(results: dict[str, Any]) -> dict[str, str]:
    parts = results.get("parts", {})
    return {f"{part} {step['step']}": step["status"] for part, steps in parts.items() for step in steps}


def _machines(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    found = [next(iter(_rows(results, "machine", ("device",)).values()), {}) for results in (a, b)]
    yield from ((name, found[0].get(name), found[1].get(name)) for name in _SAME)


if __name__ == "__main__":
    sys.exit(main())
