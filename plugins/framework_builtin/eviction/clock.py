"""Evict in order of admission, with a second chance for what was used."""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.types import BlockId
from framework_builtin.eviction._queue import Queue, QueuePolicy


class Clock(QueuePolicy):
    """FIFO with reinsertion: a block that was hit goes round again, its counter lowered by one.

    Within one admission the deepest block is first in the queue; pinned blocks keep their place. O(log n) amortised
    a call; an eviction moves at most the blocks hit since the hand last passed.

    Args:
        max_count: hits remembered at most; 1 is the classic reference bit.

    Source: Corbató 1968, "A paging experiment with the Multics system".
    """

    def __init__(self, max_count: int = 1) -> None:
        if max_count < 1:
            raise InvalidArgument(f"clock.max_count must be at least 1, found {max_count}")
        self._max_count = max_count
        self._queue = Queue()
        self._count: dict[BlockId, int] = {}

    def parameters(self) -> dict[str, float]:
        return {"max_count": self._max_count}

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._count[block] = 0
            self._queue.append(block)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._count[block] = min(self._count[block] + 1, self._max_count)

    def _queue_of(self, block: BlockId) -> Queue:
        return self._queue

    def victim(self, now: float) -> BlockId:
        while True:
            block = self._first_of(self._queue)
            if not self._count[block]:
                return block
            self._count[block] -= 1
            self._queue.append(block)

    def evicted(self, block: BlockId, now: float) -> None:
        self._queue.remove(block)
        del self._count[block]
