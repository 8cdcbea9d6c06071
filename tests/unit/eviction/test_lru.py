"""lru and fifo keep no more than their candidates; the conformance tests compare their order with an oracle's."""

from __future__ import annotations

import pytest
from eviction_histories import Pool

from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru


@pytest.mark.parametrize("policy", [Lru, Fifo])
def test_blocks_used_again_and_again_leave_no_growing_queue(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy())
    for access in range(1, 5000):
        pool.last_access[1] = access
        pool.policy.release([1], 0.0)
        pool.policy.pin([1], 0.0)
    stored = len(getattr(pool.policy, "_queue", ())) + len(getattr(pool.policy, "_heap", ()))
    assert stored < 200, stored
