"""Evict what was found least often, counting only the first few finds."""

from __future__ import annotations

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, ScoredPolicy


class CappedHits(ScoredPolicy):
    """Fewest hits goes first, counted up to `cap`; of equals the least recently used.

    The cap lets old favourites go: beyond it, only recency decides. O(log n) an operation.

    Args:
        cap: hits beyond this many do not count; 0 makes it LRU.

    Raises:
        InvalidArgument: a negative cap.
    """

    def __init__(self, *, cap: int = 3) -> None:
        if cap < 0:
            raise InvalidArgument(f"cap must be at least 0, found {cap}")
        self.cap = cap

    def score(self, block: Block, now: float) -> tuple[int, int]:
        return min(block.hits, self.cap), block.last_access
