"""Evict the least recently used leaf of the prefix tree."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId

_Entry = tuple[int, int, BlockId]


class LeafLru(EvictionPolicy):
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

    def __init__(self) -> None:
        self._stamp: dict[BlockId, int] = {}
        self._heap: list[_Entry] = []

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            del self._stamp[block]

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        last_access = self.blocks.last_access
        for block in blocks:
            self._stamp[block] = last_access[block]
            heapq.heappush(self._heap, self._entry(block))
        if len(self._heap) > 64 + 4 * len(self._stamp):
            self._heap = [self._entry(block) for block in self._stamp]
            heapq.heapify(self._heap)

    def victim(self, now: float) -> BlockId:
        inner: list[_Entry] = []
        children = self.blocks.children
        chosen: BlockId | None = None
        while self._heap and chosen is None:
            entry = self._heap[0]
            block = entry[2]
            if self._stamp.get(block) != entry[0]:
                heapq.heappop(self._heap)
            elif children[block]:
                inner.append(heapq.heappop(self._heap))
            else:
                chosen = block
        for entry in inner:
            heapq.heappush(self._heap, entry)
        if chosen is None:
            if not inner:
                raise NoCandidate("LeafLru holds no candidate")
            chosen = inner[0][2]
        return chosen

    def evicted(self, block: BlockId, now: float) -> None:
        self._stamp.pop(block, None)

    def _entry(self, block: BlockId) -> _Entry:
        return (self._stamp[block], -self.blocks.depth[block], block)
