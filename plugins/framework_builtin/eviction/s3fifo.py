"""Evict newcomers quickly, in three queues that only ever append."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from framework.errors import InvalidArgument, NoCandidate
from framework.types import BlockId
from framework_builtin.eviction._queue import Ghosts, Queue, QueuePolicy


class S3Fifo(QueuePolicy):
    """A small queue filters one-hit wonders, a main queue goes round while its blocks are hit, ghosts recall.

    A new block enters the small queue, or the main one if its name is a ghost, or if the small one is full before the
    first eviction ever. While main is over its share or small is empty, the victim is main's front; blocks hit there
    go round again with their count (at most 3) lowered. Else it is small's front; blocks hit `promote_hits` times move
    to main with their count cleared, the victim's name becomes a ghost. Ghosts are forgotten oldest first.
    Within one admission the deepest is first in its queue; pinned blocks keep their place, and a queue of pinned
    blocks only is passed over. O(log n) amortised a call.

    Args:
        small: share of the blocks meant for the small queue.
        ghosts: names remembered, as a share of the blocks.
        promote_hits: hits that move a block from small to main.

    Source: Yang et al., SOSP 2023, "FIFO queues are all you need for cache eviction"; defaults and the rule before
    the first eviction as in libcachesim 0.3.
    """

    def __init__(self, small: float = 0.1, ghosts: float = 0.9, promote_hits: int = 2) -> None:
        if not (0 < small < 1 and 0 <= ghosts < inf and promote_hits >= 1):
            raise InvalidArgument(
                "s3fifo needs 0 < small < 1, a finite ghosts >= 0 and promote_hits >= 1, "
                f"found small={small}, ghosts={ghosts}, promote_hits={promote_hits}"
            )
        self._small_share, self._ghost_share, self._promote_hits = small, ghosts, promote_hits
        self._small, self._main = Queue(), Queue()
        self._count: dict[BlockId, int] = {}
        self._ghosts = Ghosts(0)
        self._has_evicted = False
        self._choice: BlockId | None = None

    def parameters(self) -> dict[str, float]:
        return {"small": self._small_share, "ghosts": self._ghost_share, "promote_hits": self._promote_hits}

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._ghosts.capacity = int(self.blocks.num_blocks * self._ghost_share)
        self._choice = None
        for block in blocks:
            self._count[block] = 0
            recalled = self._ghosts.pop(self.blocks.key[block]) is not None
            filling = not self._has_evicted and len(self._small) >= self._small_blocks()
            (self._main if recalled or filling else self._small).append(block)
        self._ghosts.trim()

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._choice = None
        for block in blocks:
            self._count[block] += 1

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._choice = None
        super().pin(blocks, now)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._choice = None
        super().release(blocks, now)

    def victim(self, now: float) -> BlockId:
        if self._choice is None:
            self._choice = self._choose()
        return self._choice

    def evicted(self, block: BlockId, now: float) -> None:
        self._choice, self._has_evicted = None, True
        del self._count[block]
        if block in self._small:
            self._ghosts.add(self.blocks.key[block])
        self._queue_of(block).remove(block)

    def facts(self) -> dict[str, str | int | float]:
        return {"small_blocks": len(self._small), "main_blocks": len(self._main), "ghosts": len(self._ghosts)}

    def _queue_of(self, block: BlockId) -> Queue:
        return self._small if block in self._small else self._main

    def _small_blocks(self) -> int:
        return int(self.blocks.num_blocks * self._small_share)

    def _choose(self) -> BlockId:
        while True:
            small = self._small.front()
            if small is None or len(self._main) > self.blocks.num_blocks - self._small_blocks():
                main = self._main_front()
                if main is not None:
                    return main
            if small is None:
                raise NoCandidate("S3Fifo holds no candidate")
            while small is not None:
                if self._count[small] < self._promote_hits:
                    return small
                self._count[small] = 0
                self._small.move(small, self._main)
                small = self._small.front()

    def _main_front(self) -> BlockId | None:
        while True:
            block = self._main.front()
            if block is None or not self._count[block]:
                return block
            self._count[block] = min(self._count[block], 3) - 1
            self._main.append(block)
