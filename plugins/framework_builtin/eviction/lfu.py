"""Evict what was used least often."""

from __future__ import annotations

from framework.interfaces.eviction import Block, ScoredPolicy
from framework.types import BlockId


class Lfu(ScoredPolicy):
    """Least frequently used goes first; the count starts at admission and is forgotten at eviction.

    Ties: least recently used, then deepest, then lowest id. O(log n) a call.

    Args:
        aged: LFU with dynamic aging: a block's rank is its count plus the rank of the last victim when it was last
            used, so that blocks popular long ago do not stay for ever.

    Source: Mooncake's LFU (arXiv:2407.00079 §6); aging: Arlitt et al. 2000, "Evaluating content management techniques
    for Web proxy caches" (LFU-DA).
    """

    def __init__(self, aged: bool = False) -> None:
        self._aged = aged
        self._age = 0

    def parameters(self) -> dict[str, float]:
        return {"aged": self._aged}

    def score(self, block: Block, now: float) -> tuple[int, int]:
        return (block.hits + 1 + self._age, block.last_access)

    def evicted(self, block: BlockId, now: float) -> None:
        if self._aged and block in self._scores:
            self._age = self._scores[block][0]
        super().evicted(block, now)
