"""Hand out the lowest free blocks first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from framework.paged.allocator import PagedAllocator
from framework.types import BlockId


class PackedAllocator(PagedAllocator):
    """Lowest free block ids first, so that what is in use stays together at the pool's start; shares as `prefix_cow`.

    Everything else (tables, reference counts, prefix sharing, copy on write, eviction) is `PagedAllocator`'s. O(free
    blocks) a call that takes any.
    """

    share_prefix = True
    share_forks = "all"

    def choose_free(self, count: int) -> Sequence[BlockId]:
        return [BlockId(block) for block in heapq.nsmallest(count, self.pool.free)]
