"""Evict in order of admission what was not used since the hand last passed."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId


class Sieve(EvictionPolicy):
    """A hand walks from the oldest block to the newest, clears the mark of those that were hit and evicts the first
    unmarked one. Unlike CLOCK nothing moves: survivors stay where they are among newcomers.

    The hand returns to the oldest when no candidate lies ahead of it; it steps over pinned blocks. Within one
    admission the deepest is oldest. O(log n) amortised a call.
    Source: Zhang et al., NSDI 2024, "SIEVE is simpler than LRU".
    """

    def __init__(self) -> None:
        self._rank: dict[BlockId, int] = {}
        self._shown: set[BlockId] = set()
        self._marked: set[BlockId] = set()
        self._ahead: list[tuple[int, BlockId]] = []
        self._behind: list[tuple[int, BlockId]] = []
        self._stacked: set[int] = set()  # ranks with an entry in either heap
        self._next_rank = 0
        self._hand = -1

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._rank[block] = self._next_rank
            self._next_rank += 1
            self._marked.discard(block)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._marked.update(blocks)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._shown.difference_update(blocks)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._shown.update(blocks)
        for block in blocks:
            rank = self._rank[block]
            if rank not in self._stacked:
                self._stacked.add(rank)
                heapq.heappush(self._ahead if rank > self._hand else self._behind, (rank, block))

    def victim(self, now: float) -> BlockId:
        if not self._shown:
            raise NoCandidate("Sieve holds no candidate")
        while True:
            entry = self._next()
            if entry is None:
                self._return()
            elif entry[1] in self._marked:
                self._marked.remove(entry[1])
                self._hand = entry[0]
                heapq.heappush(self._behind, heapq.heappop(self._ahead))
            else:
                return entry[1]

    def evicted(self, block: BlockId, now: float) -> None:
        rank = self._rank.pop(block)
        self._shown.discard(block)
        self._marked.discard(block)
        if self._ahead and self._ahead[0] == (rank, block):
            self._hand = rank
            if self._next() is None:
                self._return()

    def _next(self) -> tuple[int, BlockId] | None:
        """The first candidate ahead of the hand; entries of pinned and evicted blocks are dropped on the way."""
        while self._ahead:
            rank, block = self._ahead[0]
            if block in self._shown and self._rank.get(block) == rank:
                return rank, block
            heapq.heappop(self._ahead)
            self._stacked.remove(rank)
        return None

    def _return(self) -> None:
        self._ahead, self._behind, self._hand = self._behind, self._ahead, -1
