"""What replays over more replicas cost: Mooncake's conversation trace behind 8 to 64, and the whole of it behind 64."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.scaling.__main__ import replayed
from experiments.shared import CONVERSATION, begun, columns, finish, parser_of, trace_path

REPLICAS, QUICK_REPLICAS = (8, 16, 32, 64), (8, 16)
REQUESTS, QUICK_REQUESTS = 100, 20
ROUTER, BLOCK, NUM_BLOCKS = "dynamo_kv", 512, 2_500


def main(arguments: Sequence[str] | None = None) -> int:
    """The first requests twice each, with more and more replicas and then with fewer and fewer; or the whole once."""
    parser = parser_of(__doc__, "fleet.replicas", quick=f"{QUICK_REQUESTS} requests")
    parser.add_argument("--whole", action="store_true", help="all requests behind 64 replicas, and nothing else")
    options = begun(parser, arguments, results="results/replicas")
    path = trace_path(CONVERSATION)
    if options.whole:
        name, rows = "whole", [_row(path, 64, QUICK_REQUESTS if options.quick else None)]
    else:
        counts, limit = (QUICK_REPLICAS, QUICK_REQUESTS) if options.quick else (REPLICAS, REQUESTS)
        name, rows = "replicas", [_row(path, count, limit) for count in (*counts, *reversed(counts))]
    finish(options, {name: rows}, {name: _table(rows)}, [path], router=ROUTER, num_blocks=NUM_BLOCKS)
    return 0


def _row(path: Path, replicas: int, limit: int | None) -> dict[str, Any]:
    start = time.perf_counter()
    result, costs = replayed([
        "mode=fleet", f"mode.replicas={replicas}", f"mode.router={ROUTER}", "executor=roofline", "workload=trace",
        f"workload.path={path}", f"workload.limit={'null' if limit is None else limit}", "hash=xxh64",
        f"cache.block_size={BLOCK}", f"cache.num_blocks={NUM_BLOCKS}", "run.progress=false", "run.requests=false",
    ])  # fmt: skip
    return {
        "replicas": replicas, "requests": result["num_finished"], "steps": result["num_steps"],
        "hit_rate": result["hit_rate"], "ttft_s_mean": result["ttft_s_mean"], **costs,
        "minutes": (time.perf_counter() - start) / 60,
    }  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return columns(rows, {
        "replicas": "{replicas}", "requests": "{requests:,}", "steps": "{steps:,}",
        "hit rate, %": lambda row: f"{100 * row['hit_rate']:.1f}", "first token, s": "{ttft_s_mean:.2f}",
        "CPU, s": "{cpu_s:.0f}", "ms a request": lambda row: f"{1e3 * row['cpu_s'] / row['requests']:.1f}",
        "µs a step": lambda row: f"{1e6 * row['cpu_s'] / row['steps']:.0f}", "minutes": "{minutes:.1f}",
        "peak, MiB": lambda row: f"{row['peak_bytes'] / 2**20:.0f}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
