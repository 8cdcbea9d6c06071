"""LRU's order, whatever is released together, late or again, against a plain sort."""

from __future__ import annotations

from random import Random

import pytest

from framework.interfaces.eviction import BlockView
from framework.types import BlockHash, BlockId
from framework_builtin.eviction.lru import Lru

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
