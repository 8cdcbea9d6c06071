"""A leaf goes before its parent."""

from __future__ import annotations

from eviction_histories import Pool

from framework.types import BlockId
from framework_builtin.eviction.leaf_lru import LeafLru


def test_a_leaf_goes_before_its_parent_however_old_the_parent_is() -> None:
    pool = Pool(LeafLru())
    for time, block in enumerate((1, 2, 3)):
        pool.offer(block, float(time))
    pool.children[1] = 1
    assert pool.policy.victim(9.0) == 2
    pool.policy.evicted(BlockId(2), 9.0)
    pool.children[1] = 0
    assert pool.drain(9.0) == [1, 3]
    stuck = Pool(LeafLru())
    stuck.offer(1, 0.0)
    stuck.children[1] = 1
    assert stuck.drain(1.0) == [1], "with inner blocks only, the oldest of them goes"
