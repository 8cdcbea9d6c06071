"""LRU's order, whatever is released together, late or again, against a plain sort; and its victims in bulk."""

from __future__ import annotations

from random import Random

import pytest
from paged_helpers import make, serve, tokens
from replay_helpers import random_requests, workload

from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockHash, BlockId
from framework_builtin.eviction.lru import Lru
from framework_cache_only.reference import replay

NUM_BLOCKS = 24


@pytest.mark.parametrize("seed", range(80))
def test_the_least_recent_block_goes_first_and_the_deepest_of_equals(seed: int) -> None:
    draw, policy = Random(seed), Lru()
    last, depth, zero = [0] * (NUM_BLOCKS + 1), [0] * (NUM_BLOCKS + 1), [0] * (NUM_BLOCKS + 1)
    policy.attach(
        BlockView(
            depth=depth, num_tokens=zero, admitted=zero, last_access=last, hits=zero, priority=zero, tenant=zero,
            children=zero, next_use=[0.0] * len(zero), key=[BlockHash(b"")] * len(zero),
        )
    )  # fmt: skip
    candidates: set[BlockId] = set()
    for clock in range(1, 200):
        idle = sorted(set(map(BlockId, range(1, NUM_BLOCKS + 1))) - candidates)
        blocks = draw.sample(idle, draw.randint(0, len(idle)))
        alike = draw.choice((clock, max(1, clock - 3), None))  # just used, used before, or each at a time of its own
        for block, below in zip(blocks, sorted(draw.sample(range(10**9), len(blocks)), reverse=True), strict=True):
            depth[block], last[block] = below, alike or draw.randint(max(1, clock - 5), clock)
        if blocks:
            policy.release(blocks, 0.0)
            candidates |= set(blocks)
        used = draw.sample(sorted(candidates), draw.randint(0, len(candidates)) // 2)
        if used:
            policy.pin(used, 0.0)
            candidates -= set(used)
        order = sorted(candidates, key=lambda block: (last[block], -depth[block]))
        count = draw.randint(0, len(order))
        named = order[:1] and [policy.victim(0.0)]
        assert named == order[:1], (clock, named, order)
        named = policy.victims(count, 0.0) if draw.random() < 0.5 else []
        assert named == order[: len(named)], (clock, named, order)
        candidates -= set(named)


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
