"""Conformance kit for replay cores: `replay_core_checks`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from framework import registry
from framework.errors import FrameworkError, InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework_cache_only.paths import CacheOnlyResult, RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_cache_only.replay_core import ReplayCore, ReplayCounts
from framework_testing.driver import Violation
from framework_testing.oracles.eviction import SlowLru
from framework_testing.rules import checks_of

Make = Callable[[], ReplayCore]


def check_it_counts_as_the_reference(make: Make) -> None:
    """Hits of each request, admissions and evictions are the reference's, for every policy it takes."""
    core = make()
    for policy in _policies():
        for seed in range(12):
            draw = Random(seed)
            requests, size = _requests(draw), draw.choice((1, 2, 3, 5, 8, 13))
            _compare(core, requests, policy, size, {"leaf_first": seed % 3 == 1, "bypass": seed % 4 == 2})


def check_a_pool_of_no_blocks_is_refused(make: Make) -> None:
    """InvalidArgument, whatever the policy."""
    for policy in _policies():
        try:
            counts = make().count(paths_of([[0, 1]]), policy(num_blocks=1), 0)
        except InvalidArgument:
            continue
        raise Violation(f"{type(make()).__name__}.count of 0 blocks must raise InvalidArgument, returned {counts}")


def _compare(
    core: ReplayCore, requests: list[list[int]], policy: Callable[..., EvictionPolicy], size: int, switches: Any
) -> None:
    paths = paths_of(requests)
    counts = core.count(paths, policy(num_blocks=size), size, **switches)
    if counts is None:
        return
    meant = replay(paths, policy(num_blocks=size), size, **switches)
    if _shown(counts) != _shown(meant):
        name = type(policy(num_blocks=size)).__name__
        raise Violation(
            f"{type(core).__name__}.count counts {name} with {size} blocks and {switches} otherwise than the "
            f"reference:\nfound {_shown(counts)}\nmeant {_shown(meant)}\nrequests {requests}"
        )


def paths_of(requests: list[list[int]], block_tokens: int = 4) -> RequestPaths:
    """Requests whose block ids are given; every block is full."""
    return build_paths(
        WorkloadRequest(
            arrival_s=float(number),
            input_tokens=len(ids) * block_tokens,
            output_tokens=1,
            block_ids=np.array(ids, dtype=np.int64),
            block_tokens=block_tokens,
        )
        for number, ids in enumerate(requests)
    )


def _requests(draw: Random) -> list[list[int]]:
    """Paths in a small tree, some of them longer than the cache, some repeated."""
    width, longest = draw.randint(1, 3), draw.randint(1, 9)
    made = [[draw.randrange(width) for _ in range(draw.randint(1, longest))] for _ in range(draw.randint(1, 60))]
    return made + draw.sample(made, len(made) // 2)


def _shown(counts: ReplayCounts | CacheOnlyResult) -> tuple[Any, ...]:
    return [int(hits) for hits in counts.request_hits], int(counts.admitted), int(counts.evictions)


def _policies() -> list[Callable[..., EvictionPolicy]]:
    """Every installed policy that can be made without options, and one that no core can know."""

    def made(name: str, num_blocks: int) -> Any:
        return registry.build("eviction", name, {}, {"num_blocks": num_blocks, "block_size": 4, "seed": 0})

    def unknown(num_blocks: int) -> EvictionPolicy:
        return SlowLru()

    policies: list[Callable[..., EvictionPolicy]] = [unknown]
    for name in registry.names("eviction"):
        try:
            made(name, 4)
        except FrameworkError:
            continue  # one that does not load, or needs options, is not this allocator's fault
        policies.append(partial(made, name))
    return policies


replay_core_checks = checks_of(globals())
