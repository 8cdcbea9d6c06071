"""First in, first out."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId


class Fifo(EvictionPolicy):
    """Smallest (admitted, deepest first) goes first, however often it was used.

    The key never changes while content is resident, so a block is pushed once a residency: O(log n) an admission and
    an eviction, O(1) for every other use. A block that is used when its turn comes is set aside until released. In a
    tier below the pool several contents may lie in a block one after the other with the same `admitted`, the last use
    that they came with: no two of them are equally deep.

    Source: the classic; orphans of an evicted parent stay until their own turn (`leaf_only` avoids them).
    """

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._candidate = bytearray(len(blocks.depth))
        self._queued = array("q", bytes(8 * len(blocks.depth)))  # the `admitted` it is queued under, plus 1; 0: not
        self._heap: list[tuple[int, int, BlockId]] = []  # (admitted, -depth, block)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._candidate[block] = 0

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        admitted, queued = self.blocks.admitted, self._queued
        for block in blocks:
            self._candidate[block] = 1
            since = admitted[block]
            if queued[block] != since + 1:
                queued[block] = since + 1
                heapq.heappush(self._heap, (since, -self.blocks.depth[block], block))

    def victim(self, now: float) -> BlockId:
        heap, queued, depth = self._heap, self._queued, self.blocks.depth
        while heap:
            since, above, block = heap[0]
            if queued[block] == since + 1 and depth[block] == -above:
                if self._candidate[block]:
                    return block
                queued[block] = 0
            heapq.heappop(heap)
        raise NoCandidate("FIFO holds no candidate")

    def evicted(self, block: BlockId, now: float) -> None:
        self._candidate[block] = 0
        self._queued[block] = 0
