"""Evict from the lowest of several LRU lists; every hit lifts a block by one list."""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.types import BlockId
from framework_builtin.eviction._queue import Queue, QueuePolicy


class Slru(QueuePolicy):
    """Segmented LRU: `num_segments` lists of equal size. A hit moves a block to the back of the next higher list; a
    list above its size sends its front back down. New blocks enter the lowest list with room, else list 0; the
    victim is the front of the lowest list that has a candidate.

    Within one call the deepest is first in its list; pinned blocks keep their place. O(num_segments + log n) a call.
    Source: Karedla, Love and Wherry 1994 (two segments); four of equal size as in libcachesim.
    """

    def __init__(self, num_segments: int = 4) -> None:
        if num_segments < 1:
            raise InvalidArgument(f"slru.num_segments must be at least 1, found {num_segments}")
        self._segments = [Queue() for _ in range(num_segments)]
        self._level: dict[BlockId, int] = {}

    def parameters(self) -> dict[str, float]:
        return {"num_segments": len(self._segments)}

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        size = self._size()
        for block in blocks:
            level = next((i for i, segment in enumerate(self._segments) if len(segment) < size), 0)
            self._level[block] = level
            self._segments[level].append(block)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            level = self._level[block]
            self._move(block, min(level + 1, len(self._segments) - 1))
            if level + 1 < len(self._segments):
                self._cool(level + 1)

    def _queue_of(self, block: BlockId) -> Queue:
        return self._segments[self._level[block]]

    def victim(self, now: float) -> BlockId:
        return self._first_of(*self._segments)

    def evicted(self, block: BlockId, now: float) -> None:
        self._segments[self._level.pop(block)].remove(block)

    def facts(self) -> dict[str, str | int | float]:
        return {"segment_blocks": " ".join(str(len(segment)) for segment in self._segments)}

    def _size(self) -> int:
        return max(1, self.blocks.num_blocks // len(self._segments))

    def _move(self, block: BlockId, level: int) -> None:
        self._queue_of(block).move(block, self._segments[level])
        self._level[block] = level

    def _cool(self, level: int) -> None:
        """Send candidates down until the list has its size; pinned ones stay until they are let go."""
        while len(self._segments[level]) > self._size():
            block = self._segments[level].front()
            if block is None:
                return
            self._move(block, level - 1)
