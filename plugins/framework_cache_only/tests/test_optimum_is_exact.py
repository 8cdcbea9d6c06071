"""No schedule beats the optimum: exhaustive search over small instances."""

from __future__ import annotations

import pytest
from replay_helpers import best_hits, random_requests, workload

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.optimum import Optimum
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import CacheOnlyResult, RequestPaths
from framework_cache_only.reference import replay


@pytest.mark.parametrize("pinned", [True, False])
def test_no_schedule_hits_more_than_the_optimum_counted_by_coming_requests(pinned: bool) -> None:
    for seed in range(40):
        requests = random_requests(seed, count=7, width=2, longest=3)
        capacity = 1 + seed % 4
        found = int(optimum_hits(workload(requests), capacity, pinned=pinned).sum())
        assert found == best_hits(requests, capacity, bypass=not pinned), (seed, capacity, requests)


def by_policy(paths: RequestPaths, capacity: int, *, pinned: bool) -> CacheOnlyResult:
    return replay(paths, Belady() if pinned else Optimum(), capacity, bypass=not pinned)


@pytest.mark.parametrize("pinned", [True, False])
def test_counting_coming_requests_and_moving_blocks_hit_alike(pinned: bool) -> None:
    for seed in range(12):
        paths = workload(random_requests(seed, count=150, width=3, longest=7))
        for capacity in (1, 3, 9, 40):
            fast = optimum_hits(paths, capacity, pinned=pinned).tolist()
            assert fast == by_policy(paths, capacity, pinned=pinned).request_hits.tolist(), (seed, capacity)
            assert pinned or fast == replay(paths, Belady(), capacity, bypass=True).request_hits.tolist()


@pytest.mark.parametrize("policy", [Lru, Lfu, Arc])
def test_no_policy_beats_the_optimum(policy: type[EvictionPolicy]) -> None:
    for seed in range(6):
        paths = workload(random_requests(seed, count=120, width=3, longest=5))
        for capacity in (1, 5, 17, 60):
            forced, ceiling = (int(optimum_hits(paths, capacity, pinned=pinned).sum()) for pinned in (True, False))
            found = replay(paths, policy(), capacity).hit_blocks
            assert found <= forced <= ceiling, (policy.__name__, seed, capacity)


def test_the_optimum_counts_what_it_keeps() -> None:
    paths = workload([[1], [2], [1], [2], [3]])
    result = by_policy(paths, 1, pinned=False)
    assert (result.hit_blocks, result.admitted, result.evictions) == (1, 1, 0), "2 and 3 are declined, 1 stays"
    forced = by_policy(paths, 1, pinned=True)
    assert (forced.hit_blocks, forced.admitted, forced.evictions) == (0, 5, 4)


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="num_blocks"):
        optimum_hits(workload([[1]]), 0, pinned=True)
