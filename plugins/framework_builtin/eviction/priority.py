"""Evict what matters least, and let importance lapse."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from framework.errors import InvalidArgument, NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId

_Entry = tuple[int, int, int, BlockId]


class Priority(EvictionPolicy):
    """Lowest priority goes first. A block's priority is that of its most important request; `retention` after its
    last use it lapses to `default`.

    NOTE. Where all requests have one priority, as in every public trace, it is LRU. What makes it differ is a workload
    with priorities.
    Ties: least recently used, then deepest, then lowest id. O(log n) amortised a call.

    Args:
        retention: how long a priority holds after the last use, in the unit of `now`: seconds in a replay, steps in a
            serve run; 0 for ever.
        default: what it lapses to.

    Source: TensorRT-LLM's KV cache retention: a priority and a duration a block.
    """

    def __init__(self, retention: float = 0.0, default: int = 0) -> None:
        if not retention >= 0:
            raise InvalidArgument(f"priority.retention must be at least 0, found {retention}")
        self._retention, self._default = retention, default
        self._entry: dict[BlockId, _Entry] = {}
        self._heap: list[_Entry] = []
        self._lapses: list[tuple[float, BlockId, int]] = []  # (time, block, last access it was set for)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            del self._entry[block]

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        view = self.blocks
        for block in blocks:
            self._rank(block, view.priority[block])
            if self._retention and view.priority[block] != self._default:
                heapq.heappush(self._lapses, (now + self._retention, block, view.last_access[block]))
        if len(self._heap) > 64 + 4 * len(self._entry):
            self._heap = list(self._entry.values())
            heapq.heapify(self._heap)

    def victim(self, now: float) -> BlockId:
        while self._lapses and self._lapses[0][0] <= now:
            _, block, last_access = heapq.heappop(self._lapses)
            if block in self._entry and self._entry[block][1] == last_access:
                self._rank(block, self._default)
        while self._heap:
            entry = self._heap[0]
            if self._entry.get(entry[3]) == entry:
                return entry[3]
            heapq.heappop(self._heap)
        raise NoCandidate("Priority holds no candidate")

    def evicted(self, block: BlockId, now: float) -> None:
        self._entry.pop(block, None)

    def _rank(self, block: BlockId, priority: int) -> None:
        entry = (priority, self.blocks.last_access[block], -self.blocks.depth[block], block)
        self._entry[block] = entry
        heapq.heappush(self._heap, entry)
