"""Evict the least recently used leaf of the prefix tree."""

from __future__ import annotations

import heapq
from typing import Any

from framework.interfaces.eviction import Block, ScoredPolicy
from framework.types import BlockId


class LeafLru(ScoredPolicy):
    """Least recently used among candidates without children, as SGLang's radix cache evicts.

    A block whose children are still cached waits until they are gone, whatever its age, so no suffix is stranded.
    When every candidate has children (they are in use, or orphaned below it), the least recently used goes.
    NOTE. In a cache-only replay it is LRU to the last block: a parent is used whenever its child is, and the deepest of
    equals goes first, so LRU's next victim never has a resident child. What makes it differ is an engine whose requests
    overlap.
    Ties: deepest first, then lowest id. O(log n) a call; an eviction that steps over k inner blocks O(k log n),
    k being 0 in a tree whose blocks are released deepest first.
    Source: Zheng et al., NeurIPS 2024, arXiv:2312.07104 §3 (RadixAttention).
    """

    def score(self, block: Block, now: float) -> int:
        return block.last_access

    def victim(self, now: float) -> BlockId:
        chosen = oldest = super().victim(now)
        inner: dict[BlockId, Any] = {}
        while self.blocks.children[chosen]:
            inner[chosen] = heapq.heappop(self._heap)
            if len(inner) == len(self._scores):
                chosen = oldest
                break
            chosen = super().victim(now)
        for entry in inner.values():
            heapq.heappush(self._heap, entry)
        return chosen
