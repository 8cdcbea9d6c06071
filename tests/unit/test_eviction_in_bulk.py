"""`victims` names what `victim` and `evicted` by turns would, for every built-in policy that overrides it or not."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from replay_helpers import random_requests, workload

from framework.errors import NoCandidate, PluginError
from framework.interfaces.eviction import EvictionPolicy
from framework.replay.reference import replay
from framework.testing.eviction import Cache, random_steps
from framework.types import BlockId
from framework_builtin.eviction.lru import Lru

POINTS = sorted(entry_points(group="framework.eviction"), key=lambda point: point.name)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_many_victims_are_those_of_single_calls(point) -> None:
    for seed in range(40):
        first, second = Cache(point.load()(), 12), Cache(point.load()(), 12)
        for cache in (first, second):
            cache.play(random_steps(seed, 50))
        count = len(first.candidates)
        bulk = first.policy.victims(count // 2, first.now)
        bulk += first.policy.victims(count - count // 2, first.now)
        single = []
        for _ in range(count):
            single.append(second.policy.victim(second.now))
            second.policy.evicted(single[-1], second.now)
        assert bulk == single, (seed, bulk, single)
        with pytest.raises(NoCandidate):
            first.policy.victims(1, first.now)


def test_a_replay_in_bulk_evicts_what_one_by_one_does() -> None:
    assert Lru.victims is not EvictionPolicy.victims
    for seed in range(25):
        paths = workload(random_requests(seed, count=120, width=3, longest=6))
        for size in (1, 4, 15, 60):
            told: list[tuple[int, int]] = []
            one = replay(paths, Lru(), size, on_evict=lambda request, node, told=told: told.append((request, node)))
            bulk = replay(paths, Lru(), size)
            assert (one, one.request_hits.tolist()) == (bulk, bulk.request_hits.tolist()), (seed, size)
            assert len(told) == bulk.evictions


@pytest.mark.parametrize("answer", [[1], [1, 1], [0, 2], [2, -1], [1, "2"], [1, 2, 3], [9, 1]])
def test_victims_that_are_none_are_blamed_on_the_policy(answer: list) -> None:
    class Liar(Lru):
        def victims(self, count: int, now: float) -> list[BlockId]:
            return answer

    with pytest.raises(PluginError, match=r"Liar\.victim"):
        replay(workload([[1, 2], [3, 4]]), Liar(), 2)
