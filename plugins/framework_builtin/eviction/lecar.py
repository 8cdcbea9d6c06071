"""Evict by recency or by frequency, drawn by weights that learn from regret."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId
from framework_builtin.eviction._queue import Ghosts, Recency

_LEARNING_RATE, _DISCOUNT = 0.45, 0.005
"""The paper's lambda, and the base of its d = _DISCOUNT ** (1 / num_blocks)."""


class LeCaR(EvictionPolicy):
    """Each eviction follows LRU or LFU at random. When a name evicted by one of them comes back, the other's weight
    grows, the more the sooner it comes back.

    A name's use count survives in the history. When both experts agree, nobody is blamed.
    LFU ties: least recently used, then deepest, then lowest id; LRU ties: deepest. The draw is made once an eviction,
    from `seed`. O(log n) amortised a call.

    Args:
        seed: of the draws.

    Source: Vietri et al., HotStorage 2018, "Driving cache replacement with ML-based LeCaR".
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._recency = Recency()
        self._uses: dict[BlockId, int] = {}
        self._heap: list[tuple[int, int, int, BlockId]] = []
        self._lost_uses: dict[object, int] = {}
        self._lru_weight = 0.5
        self._clock = 0
        self._choice: tuple[BlockId, str] | None = None

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._discount = _DISCOUNT ** (1 / blocks.num_blocks)
        self._by_lru, self._by_lfu = Ghosts(blocks.num_blocks), Ghosts(blocks.num_blocks)

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._clock += 1
            key = self.blocks.key[block]
            self._uses[block] = self._lost_uses.pop(key, 0) + 1
            self._regret(self._by_lru.pop(key), blame_lru=True)
            self._regret(self._by_lfu.pop(key), blame_lru=False)
        self._by_lru.trim()
        self._by_lfu.trim()
        if len(self._lost_uses) > 4 * self.blocks.num_blocks:
            self._lost_uses = {k: n for k, n in self._lost_uses.items() if k in self._by_lru or k in self._by_lfu}

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._clock += len(blocks)
        for block in blocks:
            self._uses[block] += 1

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._choice = None
        for block in blocks:
            self._recency.hide(block)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._choice = None
        self._recency.show(blocks)
        for block in blocks:
            heapq.heappush(self._heap, self._entry(block))
        if len(self._heap) > 64 + 4 * len(self._uses):
            self._heap = [self._entry(block) for block in self._uses if block in self._recency]
            heapq.heapify(self._heap)

    def victim(self, now: float) -> BlockId:
        if self._choice is None:
            self._choice = self._draw()
        return self._choice[0]

    def evicted(self, block: BlockId, now: float) -> None:
        chosen, expert = self._choice or (block, "")
        self._choice = None
        self._recency.hide(block)
        uses, key = self._uses.pop(block), self.blocks.key[block]
        if chosen == block and expert:
            (self._by_lru if expert == "lru" else self._by_lfu).add(key, self._clock)
            self._lost_uses[key] = uses

    def facts(self) -> dict[str, str | int | float]:
        return {"lru_weight": round(self._lru_weight, 6)}

    def _draw(self) -> tuple[BlockId, str]:
        oldest = self._recency.front()
        if oldest is None:
            raise NoCandidate("LeCaR holds no candidate")
        rarest = self._rarest()
        if oldest == rarest:
            return oldest, ""
        return (oldest, "lru") if self._random.random() < self._lru_weight else (rarest, "lfu")

    def _rarest(self) -> BlockId:
        while True:
            entry = self._heap[0]
            block = entry[3]
            if block in self._recency and entry == self._entry(block):
                return block
            heapq.heappop(self._heap)

    def _entry(self, block: BlockId) -> tuple[int, int, int, BlockId]:
        return (self._uses[block], self.blocks.last_access[block], -self.blocks.depth[block], block)

    def _regret(self, evicted_at: float | None, blame_lru: bool) -> None:
        if evicted_at is None:
            return
        gain = math.exp(_LEARNING_RATE * self._discount ** (self._clock - evicted_at))
        lru, lfu = self._lru_weight, 1 - self._lru_weight
        lru, lfu = (lru, lfu * gain) if blame_lru else (lru * gain, lfu)
        self._lru_weight = min(max(lru / (lru + lfu), 0.01), 0.99)
