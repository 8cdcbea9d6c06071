"""Time and memory of a full replay over drawn traces in Parquet, each ten times as long as the one before it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments.scaling.__main__ import replayed
from experiments.shared import begun, finish, parser_of, table
from framework import registry
from framework.interfaces.workload import WorkloadRequest
from framework_traces.writing import write_trace

BLOCK_TOKENS, NUM_BLOCKS = 16, 20_000
SYSTEM, LIVE, TURNS = 128, 64, 8
"""Blocks that all sessions begin with, sessions at once, and turns of one on average."""
NEW = (50, 250)
"""Blocks that a turn adds."""
LENGTHS, QUICK_LENGTHS = {"prefix": (10**6, 10**7), "native_cow": (10**6, 10**7, 10**8)}, {"prefix": (10**5, 10**6)}
"""Block references by allocator; the second one is in C++, a distribution of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, write and replay every length, one after the other."""
    parser = parser_of(__doc__, "scaling.drawn", quick="short traces")
    parser.add_argument("--references", type=float, nargs="*", help="block references of native_cow's traces")
    options = begun(parser, arguments, results="results/drawn")
    lengths = QUICK_LENGTHS if options.quick else LENGTHS
    if options.references:
        lengths = {**lengths, "native_cow": tuple(map(int, options.references))}
    missing = set(lengths) - set(registry.names("allocator"))
    if missing:
        sys.exit(f"no allocator {', '.join(missing)}: `pip install plugins/framework-native`")
    with tempfile.TemporaryDirectory() as folder:
        paths = {count: Path(folder) / f"{count}.parquet" for counts in lengths.values() for count in counts}
        for count, path in paths.items():
            write_trace(path, drawn(count), source="experiments.scaling.drawn")
        rows = [_row(name, paths[count]) for name, counts in lengths.items() for count in counts]
    drawn_from = {"block_tokens": BLOCK_TOKENS, "num_blocks": NUM_BLOCKS, "system": SYSTEM, "live": LIVE,
                  "turns": TURNS, "new": NEW}  # fmt: skip
    finish(options, {"drawn": rows}, {"drawn": _table(rows)}, drawn_from=drawn_from)
    return 0


def drawn(references: int) -> Iterator[WorkloadRequest]:
    """Sessions that grow, a request a turn, until their prompts have so many blocks. Names count up."""
    draw, fresh, total, time_s = np.random.default_rng(0), SYSTEM, 0, 0.0
    system = np.arange(SYSTEM)
    contexts, left, names, count = [system] * LIVE, [0] * LIVE, [""] * LIVE, 0
    while total < references:
        time_s, at = time_s + float(draw.exponential(0.5)), int(draw.integers(LIVE))
        if not left[at]:
            contexts[at], left[at], names[at] = system, int(draw.geometric(1 / TURNS)), f"s{count}"
            count += 1
        new = int(draw.integers(*NEW))
        contexts[at] = np.concatenate([contexts[at], np.arange(fresh, fresh + new)])
        fresh, total, left[at] = fresh + new, total + len(contexts[at]), left[at] - 1
        yield WorkloadRequest(
            arrival_s=time_s, input_tokens=len(contexts[at]) * BLOCK_TOKENS, output_tokens=1, block_ids=contexts[at],
            block_tokens=BLOCK_TOKENS, session=names[at],
        )  # fmt: skip


def _row(allocator: str, path: Path) -> dict[str, Any]:
    result, costs = replayed([
        "mode=replay", "workload=trace", f"workload.path={path}", f"allocator={allocator}", "hash=xxh64",
        f"cache.num_blocks={NUM_BLOCKS}", f"cache.block_size={BLOCK_TOKENS}", "engine.max_batch_tokens=65536",
        "run.progress=false", "run.requests=false", "run.report=false",
    ])  # fmt: skip
    return {
        "allocator": allocator, "block_references": result["prompt_blocks"], "requests": result["num_requests"],
        "hit_rate": result["hit_rate"], "file_bytes": path.stat().st_size, **costs,
    }  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> str:
    slopes: dict[int, float] = {}
    for number, (before, row) in enumerate(pairwise(rows), start=1):
        more = row["block_references"] - before["block_references"]
        if row["allocator"] == before["allocator"]:
            slopes[number] = (row["cpu_s"] - before["cpu_s"]) / more * 1e6
    return table(
        ["allocator", "requests", "block references", "hit rate, %", "file, MB", "CPU, s", "µs a further reference",
         "peak, MiB"],
        [
            [row["allocator"], f"{row['requests']:,}", f"{row['block_references']:,}", f"{100 * row['hit_rate']:.1f}",
             f"{row['file_bytes'] / 1e6:.1f}", f"{row['cpu_s']:.1f}", f"{slopes[at]:.2f}" if at in slopes else "",
             f"{row['peak_bytes'] / 2**20:.0f}"]
            for at, row in enumerate(rows)
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
