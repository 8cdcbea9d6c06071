"""Block references a second of cache-only replay over tiers: the model in Python against the cores in C++, in one run.

pytest tests/bench/test_bench_tiered_replay.py --benchmark-only -s

LRU in every tier. Rounds are interleaved, so that a machine whose speed drifts slows both alike; a ratio is the median
over rounds, with least and greatest. CPU time of the replay alone, of paths built beforehand. `one cache` is the
pool's core without tiers: what tiers cost a core. Tests of the same name say that all counts are equal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework import registry
from framework.guard.replay_cores import has_core
from framework.registry.components import build_component
from framework.replay.cores import count, count_over_tiers
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.tiers import TierSpec
from framework.workload.traces import open_trace
from framework_builtin.eviction.lru import Lru

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))
RULES = ("on_eviction", "write_through", "on_second_hit")
CONVERSATION, AGENTIC = "mooncake_conversation_trace.jsonl.gz", "agentic_coding_100_sessions.jsonl.gz"


def core() -> str:
    """An installed allocator with a core of tiers."""
    for plugin in registry.entries("allocator"):
        kind: Any = registry.load("allocator", plugin.name)
        if has_core(kind, "replay_tiers"):
            return plugin.name
    pytest.skip("no installed allocator counts replays over tiers itself")


def over_tiers(allocator: str | None, paths: RequestPaths, rule: str, sizes: tuple[int, ...]) -> list[int]:
    """Hits by tier."""
    below = [TierSpec(size, Lru()) for size in sizes[1:]]
    made = build_component("tiering", rule, {})
    name, _, tiers = count_over_tiers(allocator, paths, Lru(), sizes[0], below, made)
    assert name == (allocator or "python"), name
    return tiers.tier_hits.sum(axis=0).tolist()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("file", "block_tokens", "sizes"),
    [
        (CONVERSATION, None, (10_000, 20_000)),
        (CONVERSATION, None, (1_000, 2_000, 47_000)),
        (AGENTIC, 512, (2_000, 3_000)),
    ],
    ids=["conversation", "conversation in three tiers", "agentic"],
)
def test_cache_only_replay_over_tiers(
    benchmark, traces: Path, rule: str, file: str, block_tokens: int | None, sizes: tuple[int, ...]
) -> None:
    native = core()
    if not (traces / file).exists():
        pytest.skip(f"no {file} among the traces")
    paths = build_paths(open_trace(traces / file, block_tokens=block_tokens))
    subjects: dict[str, Callable[[], Any]] = {
        "python": lambda: over_tiers(None, paths, rule, sizes),
        native: lambda: over_tiers(native, paths, rule, sizes),
        "one cache": lambda: count(native, paths, Lru(), sizes[0])[1].hit_blocks,
    }
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    answers: dict[str, Any] = {}

    def one_round() -> None:
        for name, call in subjects.items():
            start = time.process_time()
            answers[name] = call()
            seconds[name].append(time.process_time() - start)

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    assert answers["python"] == answers[native], answers
    million = paths.num_references / 1e6
    for name in subjects:
        ratios = np.array(seconds["python"]) / np.array(seconds[name])
        benchmark.extra_info[f"{name} M references/s"] = round(million / min(seconds[name]), 3)
        print(
            f"\n{name:10} {million / min(seconds[name]):7.2f} M references/s of CPU, "
            f"{np.median(ratios):6.1f} [{ratios.min():.1f}, {ratios.max():.1f}] x Python's",
            end="",
        )
