"""LRU and FIFO written for reading and not for speed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId


class SlowPolicy(EvictionPolicy):
    """A set of candidates, and a scan for the smallest rank on every eviction."""

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self.candidates: set[BlockId] = set()

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self.candidates -= set(blocks)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self.candidates |= set(blocks)

    @abstractmethod
    def rank(self, block: BlockId) -> Any:
        """The smallest goes first."""

    def victim(self, now: float) -> BlockId:
        if not self.candidates:
            raise NoCandidate(f"{type(self).__name__} holds no candidate")
        return min(self.candidates, key=self.rank)

    def evicted(self, block: BlockId, now: float) -> None:
        self.candidates.discard(block)


class SlowLru(SlowPolicy):
    """Least recently used first; of those used by the same call the deepest, then the lowest id."""

    def rank(self, block: BlockId) -> Any:
        return self.blocks.last_access[block], -self.blocks.depth[block], block


class SlowFifo(SlowPolicy):
    """First published first; of those published by the same call the deepest, then the lowest id."""

    def rank(self, block: BlockId) -> Any:
        return self.blocks.admitted[block], -self.blocks.depth[block], block
