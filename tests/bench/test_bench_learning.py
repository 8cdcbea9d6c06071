"""Time a block of policies that learn, beside LRU, in one run.

pytest tests/bench/test_bench_learning.py --benchmark-only -s

CPU time of a cache-only replay of paths built beforehand, the replay itself included; rounds are interleaved, and a
ratio is of one round's pair. KVLAB_BENCH_ROUNDS=3 by default.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.interfaces.eviction import EvictionPolicy
from framework.replay.paths import build_paths
from framework.replay.reference import replay
from framework.workload.traces import open_trace
from framework_builtin.eviction.hazard import Hazard
from framework_builtin.eviction.hinted import Hinted
from framework_builtin.eviction.lru import Lru

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))
TRACES = {
    "conversation": ("mooncake_conversation_trace.jsonl.gz", 10_000),
    "agentic": ("agentic_coding_100_sessions.jsonl.gz", 2_000),
}
KINDS: dict[str, type[EvictionPolicy]] = {"lru": Lru, "hazard": Hazard, "hinted": Hinted}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", TRACES)
def test_time_a_block_of_policies_that_learn(benchmark, traces: Path, name: str) -> None:
    file, size = TRACES[name]
    if not (traces / file).exists():
        pytest.skip(f"no {file} among the traces")
    paths = build_paths(open_trace(traces / file, block_tokens=512))
    calls: dict[str, Callable[[], int]] = {
        kind: lambda make=make: replay(paths, make(), size).hit_blocks for kind, make in KINDS.items()
    }
    spent: dict[str, list[float]] = {call: [] for call in calls}
    hits: dict[str, int] = {}

    def one_round() -> None:
        for call, work in calls.items():
            start = time.process_time()
            hits[call] = work()
            spent[call].append(time.process_time() - start)

    benchmark.pedantic(one_round, rounds=ROUNDS)
    print(f"\n{name}, {size:,} blocks, {paths.num_references:,} references")
    for call, seconds in spent.items():
        ratios = sorted(mine / theirs for mine, theirs in zip(seconds, spent["lru"], strict=True))
        print(f"  {call:8} {1e6 * statistics.median(seconds) / paths.num_references:6.2f} us a block, "
              f"{ratios[0]:.2f} to {ratios[-1]:.2f} times lru, {hits[call]:,} hits")  # fmt: skip
