"""Block references a second of CPU time from a trace file to LRU's hits.

pytest tests/bench/test_bench_trace_to_hits.py --benchmark-only -s

`read` is opening, parsing and numbering blocks. `count` is the replay by the fastest installed core, else in Python.
The counts are exact and asserted; time is only printed. KVLAB_BENCH_ROUNDS=3 by default.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from framework import registry
from framework.replay.paths import build_paths
from framework.replay.reference import PYTHON, core_of, count
from framework.workload.traces import open_trace
from framework_builtin.eviction.lru import Lru

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))
CAPACITY = 10_000
TRACES = [
    ("mooncake_conversation_trace.jsonl.gz", None, 288_500, 61_046),
    ("agentic_coding_100_sessions.jsonl.gz", 512, 1_327_320, 1_261_002),
]


CORE = next(iter(registry.names("replay_core")), PYTHON)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("file", "block_tokens", "references", "hits"), TRACES, ids=["conversation", "agentic"])
def test_trace_file_to_hits(
    benchmark, traces: Path, file: str, block_tokens: int | None, references: int, hits: int
) -> None:
    if not (traces / file).exists():
        pytest.skip(f"no {file} among the traces")
    spent = []

    def one_round() -> None:
        start = time.process_time()
        paths = build_paths(open_trace(traces / file, block_tokens=block_tokens))
        read = time.process_time()
        _, found = count(core_of(CORE), paths, Lru(), CAPACITY)
        spent.append((read - start, time.process_time() - read))
        assert (paths.num_references, found.hit_blocks) == (references, hits)

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    read, counted = (min(column) for column in zip(*spent, strict=True))
    rate = references / (read + counted) / 1e6
    benchmark.extra_info["M references/s"] = round(rate, 2)
    print(f"\n{rate:6.2f} M references/s of CPU (read {read:.4f} s, count {counted:.4f} s, {CORE})", end="")
