"""Evict old blocks, where depth counts as age."""

from __future__ import annotations

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, ScoredPolicy


class DepthAware(ScoredPolicy):
    """Least recently used, each block of depth making a block `weight` accesses older.

    `weight` 0 is LRU; a very large one evicts the deepest first. The deeper a block, the fewer prompts can share it.
    Ties: least recently used, then deepest, then lowest id. O(log n) a call.
    Source: ours; the two ends are SGLang's `lru` on leaves and a deepest-first order.
    """

    def __init__(self, weight: float = 1.0) -> None:
        if not weight >= 0:
            raise InvalidArgument(f"depth_aware.weight must be at least 0, found {weight}")
        self._weight = weight

    def score(self, block: Block, now: float) -> tuple[float, int]:
        return (block.last_access - self._weight * block.depth, block.last_access)
