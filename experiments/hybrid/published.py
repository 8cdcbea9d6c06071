"""Figures that threads on serving engines state, replayed: sglang#38000, sglang#31643, vllm#53670."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framework.groups.checkpoints import Asked, CheckpointRule, Retention
from framework.groups.memory import Memory
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import KVGroup
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_component
from framework_builtin.memory.one_pool import OnePool
from framework_builtin.memory.pool_per_group import PoolPerGroup
from framework_cache_only.paths import RequestPaths, build_paths
from framework_hybrid.named import Coverage
from framework_hybrid.replay import GroupCounts, replay_groups
from framework_hybrid.rules import Junctions
from framework_workloads.trace.own_format import as_trace

PAGE = 64


class ChunkEnds(CheckpointRule):
    """A state at the end of each prefill chunk of 2,048 tokens and of the request, as SGLang donates them."""

    def places(self, asked: Asked) -> Sequence[int]:
        return [*range(2048, asked.total, 2048), asked.total // asked.step * asked.step]


def rows() -> list[dict[str, Any]]:
    """One for each published figure: the thread, what was done, its figure and the replay's."""
    threads = {
        "sglang#38000, LRU": ([0, 8192, 0, 0], coverage(lru)),
        "sglang#38000, coverage": ([8192, 8192, 16384, 28672], coverage(lambda: Coverage(_pair(PAGE)))),
    }
    what = ("fork of chain 0 at 8,192", "repeat of chain 0", "repeat of chain 1", "repeat of chain 2")
    found = [
        {"thread": thread, "request": request, "published": f"{theirs:,}", "replayed": f"{ours:,}"}
        for thread, both in threads.items()
        for request, theirs, ours in zip(what, *both, strict=True)
    ]
    for refresh, theirs in (("path", "61 %"), ("consumed", "83 %")):
        share = refreshed(128, 12, 512, refresh)
        found.append({"thread": f"sglang#31643, a hit refreshes the {refresh}", "request": "12 rounds of 128 clients",
                      "published": theirs, "replayed": f"{100 * share:.1f} %"})  # fmt: skip
    for units in (10, 18):
        for drop, theirs in ((False, "97.5 %"), (True, "87 to 92 %")):
            share = repeated(units, drop=drop)
            found.append({"thread": f"vllm#53670, {'with' if drop else 'without'} a draft model",
                          "request": f"a prompt of {_prompt(units):,} tokens again", "published": theirs,
                          "replayed": f"{100 * share:.1f} %"})  # fmt: skip
    return found


def coverage(of_states: Callable[[], EvictionPolicy]) -> list[int]:
    """Hits of sglang#38000's last four requests: three chains, a fork of the first at 8,192, each chain again.

    What the thread does not say, and is chosen here so that all eight figures are met: chains of 30,016 tokens (its
    28,672 needs 28,673 to 30,720), 12,288 tokens of the fork's own, 36 of the 48 states for the cache (four running
    requests hold three each), and among states whose neighbours stand equally close the least recently used.
    """
    chains = [[chain] * 30_016 for chain in range(3)]
    counts = _in_pools([*chains, chains[0][:8192] + [9] * 12_288, *chains], 36, of_states, ChunkEnds())
    return [int(hit) for hit in counts.hits[3:]]


def refreshed(clients: int, num_rounds: int, num_states: int, refresh: Any) -> float:
    """The hit rate of sessions that grow by 128 tokens a round, in a drawn order, with a state at each end."""
    draw, left = random.Random(0), dict.fromkeys(range(clients), num_rounds)
    prompts = []
    while left:
        client = draw.choice(list(left))
        rounds = range(num_rounds - left[client] + 1)
        prompts.append([1000 * client + number for number in rounds for _ in range(128)])
        left[client] -= 1
        if not left[client]:
            del left[client]
    counts = _in_pools(prompts, num_states, lru, Junctions(), refresh=refresh)
    return float(counts.hits.sum() / counts.prompt.sum())


def _prompt(units: int) -> int:
    """Tokens of a prompt of which so many blocks of 1,648 tokens are 97.5 %."""
    return round(1648 * units / 0.975)


def repeated(units: int, *, drop: bool) -> float:
    """The share of a prompt of about so many blocks of 1,648 tokens that hits when it comes again."""
    full = KVGroup(name="full", kind="full", block_tokens=1648, block_bytes=4, lookahead_drop=drop)
    paths = paths_of([[1] * _prompt(units)] * 2, 1648)
    memory = OnePool().open((full, _pair(1648)[1]), lru, num_bytes=4000, parents=paths.parents.tolist(), unit=1648)
    counts = replay_groups(paths, memory, Retention(0), num_samples=0)
    return float(counts.hits[1] / counts.prompt[1])


def _in_pools(
    prompts: list[list[int]], num_states: int, of_states: Callable[[], EvictionPolicy], rule: CheckpointRule, **how: Any
) -> GroupCounts:
    """A pool a group, in which K and V never run short."""
    paths = paths_of(prompts, PAGE)
    makes, enough = iter((lru, of_states)), 2 * paths.num_nodes
    memory: Memory = PoolPerGroup().open(
        _pair(PAGE), lambda _: next(makes)(), num_blocks=(enough, num_states), parents=paths.parents.tolist(),
        unit=PAGE,
    )  # fmt: skip
    return replay_groups(paths, memory, rule, chunk_tokens=2048, num_samples=0, **how)


def _pair(block_tokens: int) -> tuple[KVGroup, KVGroup]:
    return (KVGroup(name="full", kind="full", block_tokens=block_tokens, block_bytes=4),
            KVGroup(name="state", kind="state", block_tokens=block_tokens, block_bytes=4))  # fmt: skip


def paths_of(prompts: Sequence[Sequence[int]], unit: int) -> RequestPaths:
    """Full blocks of prompts that come one after the other."""
    requests = (WorkloadRequest(prompt=np.array(prompt, dtype=np.int32), arrival_s=float(index))
                for index, prompt in enumerate(prompts))  # fmt: skip
    return build_paths(as_trace(requests, unit), full_blocks_only=True)


def lru(num_blocks: int = 0) -> EvictionPolicy:
    """A fresh one."""
    policy: EvictionPolicy = build_component("eviction", "lru", {})
    return policy
