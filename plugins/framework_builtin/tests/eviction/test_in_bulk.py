"""`victims` names what `victim` and `evicted` by turns would, for every built-in policy that overrides it or not."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from paged_helpers import make, serve, tokens
from replay_helpers import random_requests, workload

from framework.errors import NoCandidate, PluginError
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId
from framework_builtin.eviction.lru import Lru
from framework_cache_only.reference import replay
from framework_testing.eviction import Cache, random_steps

POINTS = sorted(entry_points(group="framework.eviction"), key=lambda point: point.name)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_many_victims_are_those_of_single_calls(point) -> None:
    for seed in range(40):
        first, second = Cache(point.load()(), 12), Cache(point.load()(), 12)
        for cache in (first, second):
            cache.play(random_steps(seed, 50))
        count = len(first.candidates)
        bulk = first.policy.victims(count // 2, first.host.now)
        bulk += first.policy.victims(count - count // 2, first.host.now)
        single = []
        for _ in range(count):
            single.append(second.policy.victim(second.host.now))
            second.policy.evicted(single[-1], second.host.now)
        assert bulk == single, (seed, bulk, single)
        with pytest.raises(NoCandidate):
            first.policy.victims(1, first.host.now)


def test_a_replay_in_bulk_evicts_what_one_by_one_does() -> None:
    assert Lru.victims is not EvictionPolicy.victims
    for seed in range(25):
        paths = workload(random_requests(seed, count=120, width=3, longest=6))
        for size in (1, 4, 15, 60):
            reported: list[tuple[int, int]] = []
            one = replay(
                paths, Lru(), size, on_evict=lambda request, node, reported=reported: reported.append((request, node))
            )
            bulk = replay(paths, Lru(), size)
            assert (one, one.request_hits.tolist()) == (bulk, bulk.request_hits.tolist()), (seed, size)
            assert len(reported) == bulk.evictions


@pytest.mark.parametrize("answer", [[1], [1, 1], [0, 2], [2, -1], [1, "2"], [1, 2, 3], [9, 1]])
def test_victims_that_are_none_are_blamed_on_the_policy(answer: list) -> None:
    class Liar(Lru):
        def victims(self, count: int, now: float) -> list[BlockId]:
            return answer

    with pytest.raises(PluginError, match=r"Liar\.victim"):
        replay(workload([[1, 2], [3, 4]]), Liar(), 2)


def test_victims_are_not_asked_in_bulk_of_a_subclass_that_overrides_victim_alone() -> None:
    asked: list[float] = []

    class Counts(Lru):
        def victim(self, now: float) -> BlockId:
            asked.append(now)
            return super().victim(now)

        def victims(self, count: int, now: float) -> list[BlockId]:
            return EvictionPolicy.victims(self, count, now)

    class Most(Lru):
        def victim(self, now: float) -> BlockId:
            return max(block for block in range(1, 9) if self._turn[block])

    evicted: list[int] = []
    for policy in (Counts(), Most()):
        allocator = make(8, 2, eviction=policy)
        for number in (1, 2):
            serve(allocator, number, tokens(*[number] * 8))
        evicted.clear()
        allocator.listen(lambda event: evicted.extend(event.blocks) if event.kind == "evict" else None)
        serve(allocator, 3, tokens(*[3] * 8))
    assert len(asked) == 4, asked
    assert evicted == [8, 7, 6, 5], evicted
