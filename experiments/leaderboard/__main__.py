"""A leaderboard of eviction policies: how much of the gap between LRU and the pinned optimum each closes on each trace.

Every installed policy takes part, at its defaults or with the options of its file in `entries/`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gap.scoring import FRACTIONS, Field, closed_by, field_of, points_over_lru
from experiments.leaderboard.entry import Entry, read_entries, with_installed
from experiments.shared import ROOT, table
from framework import registry
from framework.errors import FrameworkError
from framework.interfaces import CONTRACT, CONTRACT_MINOR
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import build_component
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.testing import eviction_checks
from framework.workload.traces import open_trace

_RUN_OF_REQUESTS = 50
_INTRODUCTION = """# Leaderboard of eviction policies

How much of the gap between LRU and the pinned offline optimum a policy closes: the area between their hits over the
logarithm of the capacity, from 1 to 50 % of a trace's distinct blocks. 100 is the optimum, 0 is LRU, below 0 is worse
than LRU, - where LRU is optimal. The score is the mean over the traces that leave a gap. Brackets: 95 % interval by
resampling. Worst: the lowest difference to LRU at any capacity, in points of the hit rate. Time is that of the whole
replay in Python; the row of LRU has that of LRU. A row is valid when the kit passes, the policy knows no future and
exceeds no capacity, and whole traces were replayed from a committed revision at all capacities. Entries that fail the
kit, know the future or exceed the capacity have no place and stand below the others.
"""
_HOW_TO_ENTER = """To enter, install a package with an eviction policy and add a file to
`experiments/leaderboard/entries/`; see `experiments/leaderboard/README.md`.
"""


@dataclass(frozen=True, slots=True)
class Task:
    """One entry on one trace. `part`: the first requests only; None for all."""

    entry: Entry
    trace: Path
    block_tokens: int | None
    fractions: tuple[float, ...]
    part: int | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all entries by the kit, replay them on all traces, rank them, and write the page."""
    options = _parse(arguments)
    traces = sorted(path for path in options.traces.iterdir() if _is_trace(path)) if options.traces.is_dir() else []
    if not traces:
        print(f"no trace with block ids in {options.traces}; give --traces FOLDER", file=sys.stderr)
        return 2
    try:
        entries = _chosen(with_installed(read_entries(options.entries)), options.policies)
    except FrameworkError as error:
        print(error, file=sys.stderr)
        return 2
    fractions = FRACTIONS[1::2] if options.quick else FRACTIONS
    tasks = [
        Task(entry, trace, options.block_tokens, fractions, options.limit) for entry in entries for trace in traces
    ]
    revision = _revision()  # before the first result
    rows = _all_rows(entries, tasks, options.jobs)
    reasons = _reasons(options, revision)
    for row in rows:
        row |= {"revision": revision, "contract": f"{CONTRACT}.{CONTRACT_MINOR}"}
        row["ranked"] = not row["against"]
        row["against"] = [*row.pop("against"), *reasons]
        row["valid"] = not row["against"]
    ranked = sorted(
        rows, key=lambda row: (not row["ranked"], -row["score"] if row["score"] == row["score"] else math.inf)
    )
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"command": _command(options), "date": time.strftime("%Y-%m-%d"), "machine": _machine(), "rows": ranked}
    (options.out / "leaderboard.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = _page(ranked, record)
    (options.out / "leaderboard.md").write_text(page, encoding="utf-8")
    if options.publish:
        (ROOT / "docs" / "leaderboard.md").write_text(page, encoding="utf-8")
    print(page)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    here = Path(__file__).resolve().parent
    default = Path(os.environ.get("KVLAB_TRACES") or ROOT.parent / "shared" / "traces")
    parser = argparse.ArgumentParser(prog="python -m experiments.leaderboard", description=__doc__)
    parser.add_argument(
        "--traces", type=Path, default=default, help="folder of traces; those without block ids are skipped"
    )
    parser.add_argument("--entries", type=Path, default=here / "entries", help="folder of entries, one TOML file each")
    parser.add_argument("--out", type=Path, help="where the result goes; default: this experiment's results, and docs/")
    parser.add_argument("--policies", nargs="+", help="only these entries")
    parser.add_argument("--block-tokens", type=int, help="tokens a block; default: the trace's own")
    parser.add_argument("--limit", type=int, help="only the first requests of each trace; loses the valid stamp")
    parser.add_argument("--quick", action="store_true", help="every second capacity; loses the valid stamp")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes")
    options = parser.parse_args(arguments)
    options.publish = options.out is None and not (options.quick or options.limit or options.policies)
    options.out = options.out or here / "results"
    return options


@functools.cache
def _read(path: Path, block_tokens: int | None, limit: int | None) -> tuple[RequestPaths, Any, str, str]:
    """Paths, the resampling unit of each request, the unit's name, and the file's SHA-256."""
    requests = []
    for number, request in enumerate(open_trace(path, block_tokens=block_tokens)):
        if limit is not None and number >= limit:
            break
        requests.append(request)
    labels = [request.session or request.namespace.salt for request in requests]
    numbers: dict[str, int] = {}
    if labels and all(labels):
        units, name = np.array([numbers.setdefault(label, len(numbers)) for label in labels]), "session"
    else:
        units, name = np.arange(len(requests)) // _RUN_OF_REQUESTS, f"run of {_RUN_OF_REQUESTS} requests"
    return build_paths(requests), units, name, hashlib.sha256(path.read_bytes()).hexdigest()


def _is_trace(path: Path) -> bool:
    """Whether the file is a trace with block ids; others in the folder are no error."""
    if not path.is_file() or path.suffix == ".md":
        return False
    try:
        return bool(open_trace(path).block_tokens)
    except (FrameworkError, ValueError, OSError):
        return False


@functools.cache
def _field(path: Path, block_tokens: int | None, limit: int | None, fractions: tuple[float, ...]) -> Field:
    paths, units, _, _ = _read(path, block_tokens, limit)
    return field_of(paths, units, fractions)


def _build(entry: Entry, capacity: int, block_tokens: int) -> EvictionPolicy:
    shared = {"num_blocks": capacity, "block_size": block_tokens, "seed": 0}
    built: EvictionPolicy = build_component("eviction", {"name": entry.policy, **entry.options}, shared)
    return built


def judge(entry: Entry) -> list[str]:
    """Why an entry has no valid stamp, whatever the trace; empty when it has."""
    against = []
    kind: Any = registry.load("eviction", entry.policy)
    if kind.needs_future:
        against.append("it knows the future")
    if kind.bypass:
        against.append("it may exceed the capacity")
    for check in eviction_checks:
        try:
            check(lambda: _build(entry, 64, 16))
        except Exception as error:
            against.append(f"kit: {check.__name__}: {str(error).splitlines()[0]}")
            break
    return against


def measure(task: Task) -> dict[str, Any]:
    """What one entry does on one trace."""
    paths, _, unit, sha256 = _read(task.trace, task.block_tokens, task.part)
    field = _field(task.trace, task.block_tokens, task.part, task.fractions)
    hits, start = [], time.process_time()
    for capacity in field.capacities:
        policy = _build(task.entry, capacity, paths.block_tokens)
        hits.append(field.by_unit(replay(paths, policy, capacity, bypass=policy.bypass).request_hits))
    spent = time.process_time() - start
    found = np.stack(hits)
    area = closed_by(field, found)
    return {
        "trace": task.trace.name, "sha256": sha256, "block_tokens": paths.block_tokens, "unit": unit,
        "capacities": list(field.capacities), "hit_blocks": found.sum(axis=1).astype(int).tolist(),
        "lru_hit_blocks": field.lru.sum(axis=1).astype(int).tolist(),
        "pinned_optimum_hit_blocks": field.optimum.sum(axis=1).astype(int).tolist(),
        "closed": area.value, "low": area.low, "high": area.high,
        "worst_points": float(points_over_lru(field, found).min()),
        "us_per_block": 1e6 * spent / len(hits) / paths.num_references,
    }  # fmt: skip


def _all_rows(entries: Sequence[Entry], tasks: Sequence[Task], jobs: int) -> list[dict[str, Any]]:
    from rich.progress import track

    with ProcessPoolExecutor(jobs) as pool:
        verdicts = [pool.submit(judge, entry) for entry in entries]
        futures = [pool.submit(measure, task) for task in tasks]
        for future in track(as_completed([*verdicts, *futures]), "judging", total=len(verdicts) + len(futures)):
            future.result()
    rows = []
    for entry, verdict in zip(entries, verdicts, strict=True):
        mine = [future.result() for task, future in zip(tasks, futures, strict=True) if task.entry == entry]
        rows.append(
            {
                "name": entry.name,
                "policy": entry.policy,
                "options": dict(entry.options),
                "by": entry.by,
                "source": entry.source,
                "score": _mean([found["closed"] for found in mine]),
                "worst_points": min(found["worst_points"] for found in mine),
                "us_per_block": float(np.mean([found["us_per_block"] for found in mine])),
                "kit": not any(reason.startswith("kit") for reason in verdict.result()),
                "against": verdict.result(),
                "traces": mine,
            }
        )
    return rows


def _mean(closed: Sequence[float]) -> float:
    """Over the traces that leave a gap; NaN when none does."""
    known = [value for value in closed if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _chosen(entries: Sequence[Entry], names: Sequence[str] | None) -> list[Entry]:
    for entry in entries:
        registry.find("eviction", entry.policy)
    return [entry for entry in entries if names is None or entry.name in names]


def _reasons(options: argparse.Namespace, revision: str) -> list[str]:
    """Why no row of this run is valid."""
    found = []
    if options.limit is not None:
        found.append(f"--limit {options.limit}: a part of each trace")
    if options.quick:
        found.append("--quick: every second capacity")
    if revision.endswith("+") or not revision:
        found.append("the checkout has changes that no revision names")
    return found


def _revision() -> str:
    """Of the checkout; "+" at the end when files differ from it, "" when there is none."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    revision = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "framework", "plugins", "experiments/gap")
    return revision + "+" * bool(changed)


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _command(options: argparse.Namespace) -> str:
    flags = ["--quick"] * options.quick + ([f"--limit {options.limit}"] if options.limit else [])
    flags += [f"--block-tokens {options.block_tokens}"] if options.block_tokens else []
    return " ".join(["python -m experiments.leaderboard --traces FOLDER", *flags])


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _page(rows: Sequence[dict[str, Any]], record: dict[str, Any]) -> str:
    names = [found["trace"] for found in rows[0]["traces"]]
    short = [name.split(".")[0] for name in names]
    columns = [stem if short.count(stem) == 1 else name for stem, name in zip(short, names, strict=True)]
    header = ["", "entry", "score, %", *(f"{name}, %" for name in columns), "worst, points", "us a block",
              "kit", "valid"]  # fmt: skip
    body = [
        [place if row["ranked"] else "-", row["name"], _percent(row["score"]),
         *(f"{_percent(f['closed'])} [{_percent(f['low'])}, {_percent(f['high'])}]" for f in row["traces"]),
         f"{row['worst_points']:+.2f}", f"{row['us_per_block']:.1f}", "pass" if row["kit"] else "FAIL",
         "yes" if row["valid"] else "no: " + "; ".join(row["against"])]
        for place, row in enumerate(rows, start=1)
    ]  # fmt: skip
    pins = table(
        ["trace", "SHA-256", "tokens a block", "interval by", "capacities, blocks"],
        [[f["trace"], f["sha256"], f["block_tokens"], f["unit"], ", ".join(map(str, f["capacities"]))]
         for f in rows[0]["traces"]],
    )  # fmt: skip
    revision, contract = rows[0]["revision"] or "unknown", rows[0]["contract"]
    made = f"Revision {revision}, contract {contract}, {record['date']}, {record['machine']}."
    command = f"Command: `{record['command']}`."
    return f"{_INTRODUCTION}\n{table(header, body)}\n\n{made} {command}\n\n{pins}\n\n{_HOW_TO_ENTER}"


if __name__ == "__main__":
    sys.exit(main())
