"""Evict what matters least, and let importance lapse."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, ScoredPolicy
from framework.types import BlockId


class Priority(ScoredPolicy):
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
        self._lapses: list[tuple[float, BlockId, int]] = []  # (time, block, last access it was set for)

    def score(self, block: Block, now: float) -> tuple[int, int]:
        return (block.priority, block.last_access)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        super().release(blocks, now)
        priority, last_access = self.blocks.priority, self.blocks.last_access
        for block in blocks if self._retention else ():
            if priority[block] != self._default:
                heapq.heappush(self._lapses, (now + self._retention, block, last_access[block]))

    def victim(self, now: float) -> BlockId:
        while self._lapses and self._lapses[0][0] <= now:
            _, block, last_access = heapq.heappop(self._lapses)
            if block in self._scores and self._scores[block][1] == last_access:
                self._scores[block] = (self._default, last_access)
                heapq.heappush(self._heap, (self._scores[block], -self.blocks.depth[block], block))
        return super().victim(now)
