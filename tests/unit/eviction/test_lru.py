"""lru, fifo and random against orders recomputed from the facts, late releases included."""

from __future__ import annotations

from random import Random as Draw

import pytest
from eviction_facts import SIZE, Facts, drain

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.random import Random


@pytest.mark.parametrize(("policy", "column"), [(Lru, "last_access"), (Fifo, "admitted")])
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_the_order_is_the_key_then_deepest_first(policy: type[EvictionPolicy], column: str, late: float) -> None:
    draw = Draw(7)
    for _ in range(60):
        facts, access = Facts(policy()), 0
        candidates: set[int] = set()
        withheld: list[int] = []
        unused = list(range(1, SIZE))
        draw.shuffle(unused)
        while unused or draw.random() < 0.5:
            access += 1
            again = [b for b in sorted(candidates) if draw.random() < 0.1]
            if again:
                facts.policy.pin(again, 0.0)
                candidates -= set(again)
            new = [unused.pop() for _ in range(min(len(unused), draw.randint(1, 5)))]
            for depth, block in enumerate(new):
                facts.depth[block], facts.admitted[block] = depth, access
            if new:
                facts.policy.admit(new[::-1], 0.0)
            for block in [*again, *new]:
                facts.last_access[block] = access
            batch = sorted([*again, *new], key=lambda b: -facts.depth[b])
            held = [b for b in batch if draw.random() < late]
            batch = [b for b in batch if b not in held]
            if batch:
                facts.policy.release(batch, 0.0)
                candidates |= set(batch)
            withheld += held
            if withheld and draw.random() < 0.5:
                block = withheld.pop(draw.randrange(len(withheld)))
                facts.policy.release([block], 0.0)
                candidates.add(block)
        values = getattr(facts, column)
        expected = sorted((values[b], -facts.depth[b]) for b in candidates)
        order = drain(facts.policy)
        assert sorted(order) == sorted(candidates)
        assert [(values[b], -facts.depth[b]) for b in order] == expected


@pytest.mark.parametrize("policy", [Lru, Fifo, Random])
def test_an_empty_policy_says_that_it_holds_no_candidate(policy: type[EvictionPolicy]) -> None:
    facts = Facts(policy())
    with pytest.raises(NoCandidate):
        facts.policy.victim(0.0)
    facts.policy.admit([1], 0.0)
    facts.policy.evicted(1, 0.0)  # dropped by a reset while in use
    with pytest.raises(NoCandidate):
        facts.policy.victim(0.0)


@pytest.mark.parametrize("policy", [Lru, Fifo])
def test_blocks_used_again_and_again_leave_no_growing_queue(policy: type[EvictionPolicy]) -> None:
    facts = Facts(policy())
    for access in range(1, 5000):
        facts.last_access[1] = access
        facts.policy.release([1], 0.0)
        facts.policy.pin([1], 0.0)
    stored = len(getattr(facts.policy, "_queue", ())) + len(getattr(facts.policy, "_heap", ()))
    assert stored < 200, stored
