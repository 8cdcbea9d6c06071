"""LeCaR trusts the expert whose victims stay away."""

from __future__ import annotations

import pytest
from eviction_histories import Pool, flat, victims
from replay_helpers import workload

from framework.replay.reference import replay
from framework.types import BlockId
from framework_builtin.eviction.lecar import LeCaR


def test_lecar_shifts_its_weight_towards_the_expert_that_was_right() -> None:
    policy = LeCaR(seed=1)
    pattern = ("a" * 3 + "b" * 3 + "".join(chr(1000 + i) for i in range(8))) * 30
    replay(workload(flat(pattern)), policy, 4)
    assert 0.01 <= policy._lru_weight <= 0.99
    assert policy._lru_weight != 0.5
    assert victims(LeCaR(seed=1), pattern, 4) == victims(LeCaR(seed=1), pattern, 4)


@pytest.mark.parametrize("expert", ["lru", "lfu"])
def test_lecar_trusts_an_expert_less_after_its_victim_came_back(expert: str) -> None:
    policy = LeCaR()
    pool = Pool(policy)
    for time, block in enumerate((1, 2, 3)):
        pool.offer(block, float(time))
    policy.pin([BlockId(1)], 3.0)
    policy.hit([BlockId(1)], 3.0)
    policy.release([BlockId(1)], 3.0)
    policy.pin([BlockId(2)], 4.0)
    policy.release([BlockId(2)], 4.0)
    # then 1 is the least recent, used twice; 2 the least often used
    policy._uses[BlockId(3)] = 5
    pool.policy.pin([BlockId(3)], 5.0)
    pool.policy.release([BlockId(3)], 5.0)
    policy._lru_weight = 1.0 if expert == "lru" else 0.0
    victim = policy.victim(6.0)
    assert victim == (1 if expert == "lru" else 2)
    policy.evicted(victim, 6.0)
    policy._lru_weight = 0.5
    policy.admit([victim], 7.0)
    assert policy._lru_weight < 0.5 if expert == "lru" else policy._lru_weight > 0.5
