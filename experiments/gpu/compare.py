"""Two results of `run.py`, step by step and cell by cell.

    python experiments/gpu/compare.py A/results.json B/results.json

Ratios are B over A; above 1 B is faster. Rows that only one of them has are named. Exit status 1 where B fails a step
that A passed, 2 where the files cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CELL = ("backend", "cell", "block_size", "heads", "dtype", "kv_dtype", "layout")
_SAME = ("device", "driver_version", "torch", "cuda", "clocks.max.sm")


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    options = parser.parse_args()
    try:
        a, b = (json.loads(path.read_text()) for path in (options.a, options.b))
    except (OSError, json.JSONDecodeError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(a, b)) or "nothing to compare: the results have no rows")
    return 1 if regressions(a, b) else 0


def lines(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    """What differs of the machines, of steps, of cells and of serving."""
    if a.get("dry_run") or b.get("dry_run"):
        yield "one of these is a dry run: its numbers mean nothing"
    yield from (f"unlike machines: {name}: {old} | {new}" for name, old, new in _machines(a, b) if old != new)
    yield from regressions(a, b)
    for part, key, rate in (
        ("grid", _CELL, "share_of_ceiling"),
        ("serve", ("backend", "eager"), "output_tokens_per_s"),
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
    steps = results.get("parts", {}).get(part, [])
    return {" ".join(str(row.get(name)) for name in key): row for step in steps for row in step.get("rows", [])}


def _statuses(results: dict[str, Any]) -> dict[str, str]:
    parts = results.get("parts", {})
    return {f"{part} {step['step']}": step["status"] for part, steps in parts.items() for step in steps}


def _machines(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    found = [next(iter(_rows(results, "machine", ("device",)).values()), {}) for results in (a, b)]
    yield from ((name, found[0].get(name), found[1].get(name)) for name in _SAME)


if __name__ == "__main__":
    sys.exit(main())
