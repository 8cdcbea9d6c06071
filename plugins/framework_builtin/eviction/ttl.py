"""Evict what has outlived its time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from framework.errors import InvalidArgument, NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId
from framework_builtin.eviction._queue import Recency


class Ttl(EvictionPolicy):
    """Expired blocks go first, the earliest expired first; while none is expired, the least recently used.

    Nothing is evicted before room is needed: a time to live orders, it does not empty.
    NOTE. As long as no block lives out its time, and whenever time is refreshed by use and all blocks have the same
    one, the first to expire is the least recently used: with `refresh=True` it is LRU in other words, in every run.
    What makes it differ is `refresh=False`, a lifetime that use does not prolong.
    Ties: deepest first within one call, then lowest id. O(log n) a call.

    Args:
        ttl: time to live, in the unit of `now`: seconds in a replay, steps in a serve run.
        refresh: count from the last use; False counts from admission.

    Source: prompt caches of hosted APIs (a lifetime of minutes, refreshed or not by use).
    """

    def __init__(self, ttl: float = 1000.0, refresh: bool = True) -> None:
        if not ttl > 0:
            raise InvalidArgument(f"ttl.ttl must be above 0, found {ttl}")
        self._ttl, self._refresh = ttl, refresh
        self._recency = Recency()
        self._since: dict[BlockId, float] = {}
        self._heap: list[tuple[float, int, BlockId]] = []

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._since[block] = now

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._recency.hide(block)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._recency.show(blocks)
        for block in blocks:
            if self._refresh:
                self._since[block] = now
            heapq.heappush(self._heap, self._entry(block))
        if len(self._heap) > 64 + 4 * len(self._since):
            self._heap = [self._entry(block) for block in self._since if block in self._recency]
            heapq.heapify(self._heap)

    def victim(self, now: float) -> BlockId:
        while self._heap and self._heap[0][0] + self._ttl <= now:
            since, _, block = self._heap[0]
            if block in self._recency and self._since[block] == since:
                return block
            heapq.heappop(self._heap)
        oldest = self._recency.front()
        if oldest is None:
            raise NoCandidate("Ttl holds no candidate")
        return oldest

    def evicted(self, block: BlockId, now: float) -> None:
        self._recency.hide(block)
        del self._since[block]

    def _entry(self, block: BlockId) -> tuple[float, int, BlockId]:
        return (self._since[block], -self.blocks.depth[block], block)
