"""Evict by the time of the K-th last use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, BlockView, ScoredPolicy
from framework.types import BlockHash, BlockId


class LruK(ScoredPolicy):
    """Oldest K-th last use goes first; blocks used fewer than K times go before all others, least recently used first.

    Uses are admissions and hits, timed by the count of such calls. The history of an evicted block is kept under its
    name and continues when it comes back, oldest histories forgotten first.
    Ties: least recently used, then deepest, then lowest id. O(log n + k) a call.

    Args:
        k: 2 is the usual choice; 1 is LRU.
        history: names remembered, as a share of the blocks.

    Source: O'Neil, O'Neil and Weikum, SIGMOD 1993 (correlated reference period 0).
    """

    def __init__(self, k: int = 2, history: float = 1.0) -> None:
        if k < 1 or not history >= 0:
            raise InvalidArgument(f"lru_k needs k >= 1 and history >= 0, found k={k}, history={history}")
        self._k, self._history_share = k, history
        self._uses: dict[BlockId, tuple[int, ...]] = {}
        self._lost: OrderedDict[BlockHash | None, tuple[int, ...]] = OrderedDict()
        self._clock = 0

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._history = int(blocks.num_blocks * self._history_share)

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._clock += 1
        for block in blocks:
            earlier = self._lost.pop(self.blocks.key[block], ())
            self._uses[block] = (*earlier, self._clock)[-self._k :]

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._clock += 1
        for block in blocks:
            self._uses[block] = (*self._uses[block], self._clock)[-self._k :]

    def score(self, block: Block, now: float) -> tuple[int, int]:
        uses = self._uses[block.id]
        return (uses[0] if len(uses) == self._k else -1, uses[-1])

    def evicted(self, block: BlockId, now: float) -> None:
        super().evicted(block, now)
        self._lost[self.blocks.key[block]] = self._uses.pop(block)
        while len(self._lost) > self._history:
            self._lost.popitem(last=False)
