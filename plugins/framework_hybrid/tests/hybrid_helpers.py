"""Short traces made for hybrid replays, and memories to replay them over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from framework.groups.memory import Memory
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import KVGroup
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_component
from framework_builtin.memory.one_pool import OnePool
from framework_builtin.memory.pool_per_group import PoolPerGroup
from framework_builtin.memory.two_level import TwoLevel
from framework_cache_only.paths import RequestPaths, build_paths
from framework_workloads.trace.own_format import as_trace


def lru(num_blocks: int = 0) -> EvictionPolicy:
    policy: EvictionPolicy = build_component("eviction", "lru", {})
    return policy


def paths_of(prompts: Iterable[Sequence[int]], unit: int = 4) -> RequestPaths:
    requests = (WorkloadRequest(prompt=np.array(prompt, dtype=np.int32), arrival_s=float(i))
                for i, prompt in enumerate(prompts))  # fmt: skip
    return build_paths(as_trace(requests, unit), full_blocks_only=True)


def branching(count: int, seed: int, *, longest: int = 60) -> list[list[int]]:
    """Prompts that go on from any place of earlier ones, with tokens of their own."""
    draw, made = random.Random(seed), list[list[int]]()
    for number in range(count):
        base = draw.choice(made)[: draw.randrange(longest)] if made and draw.random() < 0.8 else [draw.randrange(3)] * 6
        made.append((base + [100 + number] * draw.randrange(1, 14))[:longest])
    return made


def memories(groups: Sequence[KVGroup], num_bytes: int, paths: RequestPaths | None = None,
             policy: Callable[[], EvictionPolicy] = lru) -> dict[str, Memory]:  # fmt: skip
    """The three ways to share, fresh; those that refuse the groups are left out. Without paths, for an allocator."""
    parents = None if paths is None else paths.parents.tolist()
    paths_given: dict[str, Any] = {"parents": parents, "unit": 4 if paths is None else paths.block_tokens}
    given = {"num_bytes": num_bytes, **paths_given}

    def fresh(num_blocks: int) -> EvictionPolicy:
        return policy()

    made: dict[str, Memory] = {"one pool": OnePool().open(groups, fresh, **given)}
    if len({each.block_tokens for each in groups}) == 1 and any(each.kind == "full" for each in groups):
        counts = [int(num_bytes / len(groups)) // each.block_bytes for each in groups]
        made["pool per group"] = PoolPerGroup().open(groups, fresh, num_blocks=counts, **paths_given)
    return {**made, "two levels": TwoLevel().open(groups, fresh, **given)}
