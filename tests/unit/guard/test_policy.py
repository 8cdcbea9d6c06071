"""Many victims at once are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_helpers import admit, make, serve, tokens

from framework.errors import PluginError
from framework.paged.allocator import PagedAllocator
from framework.types import RequestId
from framework_builtin.eviction.lru import Lru

POOL, MANY = 300, 120


class Bulk(Lru):
    """LRU whose answer to `victims` is changed by `spoil`."""

    spoil: Any = None

    def victim(self, now: float) -> Any:
        return super().victim(now)

    def evicted(self, block: Any, now: float) -> None:
        super().evicted(block, now)

    def victims(self, count: int, now: float) -> Any:
        named = super().victims(count, now)
        return named if self.spoil is None else self.spoil(named)


def full(policy: Bulk) -> PagedAllocator:
    """All blocks cached, but the two of request 1."""
    allocator = make(POOL, 1, eviction=policy)
    assert admit(allocator, 1, tokens(7, 8)) == 0
    allocator.commit(RequestId(1), tokens(7, 8))
    for number in range(2, 5):
        serve(allocator, number, tokens(*([number] * (POOL // 3))))
    serve(allocator, 6, tokens(*([6] * (POOL // 3))))
    assert not allocator.pool.free
    allocator.check()
    return allocator


SPOILED = {
    "one twice": lambda named: [*named[:-1], named[0]],
    "one in use": lambda named: [*named[:50], 1, *named[51:]],
    "the null block": lambda named: [*named[:-1], 0],
    "below 0": lambda named: [-1, *named[1:]],
    "past the pool": lambda named: [*named[:70], POOL + 1, *named[71:]],
    "past any integer of C": lambda named: [*named[:70], 2**80, *named[71:]],
    "a bool": lambda named: [*named[:70], True, *named[71:]],
    "a NumPy integer": lambda named: [*named[:-1], np.int64(named[-1])],
    "one too few": lambda named: named[:-1],
    "one too many": lambda named: [*named, named[0] + 1],
    "nothing": lambda named: [],
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_many_wrong_victims_are_refused_by_name(spoil: str) -> None:
    policy = Bulk()
    allocator = full(policy)
    policy.spoil = SPOILED[spoil]
    with pytest.raises(PluginError, match=r"Bulk\.victims: must name 120 distinct candidates"):
        admit(allocator, 9, tokens(*([9] * MANY)))
