"""Evict newcomers first in, first out; what comes back soon after is kept by recency."""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.types import BlockId
from framework_builtin.eviction._queue import Ghosts, Queue, QueuePolicy


class TwoQ(QueuePolicy):
    """Full 2Q: a FIFO of newcomers (A1in), a FIFO of the names it evicted (A1out), an LRU of the proven (Am).

    A new block enters A1in, or Am if its name is in A1out. Hits in A1in change nothing, in Am they move to the back.
    The victim is A1in's front while A1in is over its share, else Am's; if that one has no candidate, the other's.
    Within one call the deepest is first in its queue; pinned blocks keep their place. O(log n) amortised a call.

    Args:
        newcomers: share of the blocks meant for A1in.
        ghosts: names A1out remembers, as a share of the blocks.

    Source: Johnson and Shasha, VLDB 1994.
    """

    def __init__(self, newcomers: float = 0.25, ghosts: float = 0.5) -> None:
        if not (0 < newcomers < 1 and ghosts >= 0):
            raise InvalidArgument(f"two_q needs 0 < newcomers < 1 and ghosts >= 0, found {newcomers} and {ghosts}")
        self._newcomer_share, self._ghost_share = newcomers, ghosts
        self._in, self._main = Queue(), Queue()
        self._ghosts = Ghosts(0)

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._ghosts.capacity = int(self.blocks.num_blocks * self._ghost_share)
        for block in blocks:
            recalled = self._ghosts.pop(self.blocks.key[block]) is not None
            (self._main if recalled else self._in).append(block)
        self._ghosts.trim()

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            if block in self._main:
                self._main.append(block)

    def victim(self, now: float) -> BlockId:
        over = len(self._in) > int(self.blocks.num_blocks * self._newcomer_share)
        return self._first_of(*((self._in, self._main) if over else (self._main, self._in)))

    def evicted(self, block: BlockId, now: float) -> None:
        if block in self._in:
            self._ghosts.add(self.blocks.key[block])
        self._queue_of(block).remove(block)

    def facts(self) -> dict[str, str | int | float]:
        return {"newcomer_blocks": len(self._in), "main_blocks": len(self._main), "ghosts": len(self._ghosts)}

    def _queue_of(self, block: BlockId) -> Queue:
        return self._in if block in self._in else self._main
