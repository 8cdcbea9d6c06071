"""Check that an allocator's own core for cache-only replays counts as the reference does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from framework import registry
from framework.errors import FrameworkError
from framework.guard.replay_cores import has_core
from framework.interfaces.allocator import Allocator, ReplayCounts
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.testing.driver import Violation
from framework.testing.oracles.eviction import SlowLru
from framework.testing.subjects import Make, fresh


def check_a_replay_core_counts_as_the_reference(make: Make) -> None:
    """With `replay_references`: hits of each request, admissions and evictions, for every policy it takes."""
    kind = type(fresh(make, 4, 2))
    if not has_core(kind, "replay_references"):
        return
    for policy in _policies():
        for seed in range(12):
            draw = Random(seed)
            requests, size = _requests(draw), draw.choice((1, 2, 3, 5, 8, 13))
            if not _compare(kind, requests, policy, size, {"leaf_first": seed % 3 == 1, "bypass": seed % 4 == 2}):
                break


def _compare(
    kind: type[Allocator],
    requests: list[list[int]],
    policy: Callable[..., EvictionPolicy],
    size: int,
    switches: Any,
) -> bool:
    """Whether the core takes this policy."""
    paths = paths_of(requests)
    found = kind.replay_references(paths, policy(num_blocks=size), size, **switches)
    if found is None:
        return False
    meant = replay(paths, policy(num_blocks=size), size, **switches)
    wanted = ReplayCounts(request_hits=meant.request_hits, admitted=meant.admitted, evictions=meant.evictions)
    if _shown(found) != _shown(wanted):
        name = type(policy(num_blocks=size)).__name__
        raise Violation(
            f"{kind.__name__}.replay_references counts {name} with {size} blocks and {switches} otherwise than the "
            f"reference:\nfound {_shown(found)}\nmeant {_shown(wanted)}\nrequests {requests}"
        )
    return True


def paths_of(requests: list[list[int]], block_tokens: int = 4) -> RequestPaths:
    """Requests whose block ids are given; every block is full."""
    return build_paths(
        WorkloadRequest(
            arrival_s=float(at),
            input_tokens=len(ids) * block_tokens,
            output_tokens=1,
            block_ids=np.array(ids, dtype=np.int64),
            block_tokens=block_tokens,
        )
        for at, ids in enumerate(requests)
    )


def _requests(draw: Random) -> list[list[int]]:
    """Paths in a small tree, some of them longer than the cache, some repeated."""
    width, longest = draw.randint(1, 3), draw.randint(1, 9)
    made = [[draw.randrange(width) for _ in range(draw.randint(1, longest))] for _ in range(draw.randint(1, 60))]
    return made + draw.sample(made, len(made) // 2)


def _shown(counts: ReplayCounts) -> tuple[Any, ...]:
    return [int(hits) for hits in counts.request_hits], int(counts.admitted), int(counts.evictions)


def _policies() -> list[Callable[..., EvictionPolicy]]:
    """Every installed policy that can be made without options, and one that no core can know."""

    def made(name: str, num_blocks: int) -> Any:
        return registry.build("eviction", name, {}, {"num_blocks": num_blocks, "block_size": 4, "seed": 0})

    def unknown(num_blocks: int) -> EvictionPolicy:
        return SlowLru()

    found: list[Callable[..., EvictionPolicy]] = [unknown]
    for name in registry.names("eviction"):
        try:
            made(name, 4)
        except FrameworkError:
            continue  # one that does not load, or needs options, is not this allocator's fault
        found.append(partial(made, name))
    return found
