"""Least recently used goes first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId


class Lru(EvictionPolicy):
    """Smallest (last_access, deepest first) goes first: a prefix outlives its suffixes.

    Blocks released together share their last access and come deepest first, so a release is one entry of a heap. A
    block that is used again stays in its old entries, which are known by their number to hold it no longer.

    Source: the classic; deepest first as in vLLM v1/core/kv_cache_manager.py (free in reverse order).
    """

    recency_stack = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._turn = [0] * len(blocks.depth)  # the number of the release that holds the block; 0: no candidate
        self._count = self._stored = 0  # releases so far; blocks in the heap
        self._heap: list[tuple[int, int, int, Any]] = []  # (last access, -depth, number, blocks, next last)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        turn = self._turn
        for block in blocks:
            turn[block] = 0

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._count += 1
        turn, count, last = self._turn, self._count, self.blocks.last_access
        access, together = last[blocks[0]], True
        for block in blocks:
            turn[block] = count
            together = together and last[block] == access
        for run in [blocks] if together else [[block] for block in blocks]:
            self._push(last[run[0]], count, array("i", run[::-1]))
        if self._stored > 64 + 2 * len(turn):
            old, self._heap, self._stored = self._heap, [], 0
            for access, _, count, stored in old:
                self._push(access, count, array("i", [block for block in stored if turn[block] == count]))

    def _push(self, access: int, count: int, blocks: Any) -> None:
        if blocks:
            heappush(self._heap, (access, -self.blocks.depth[blocks[-1]], count, blocks))
            self._stored += len(blocks)

    def victim(self, now: float) -> BlockId:
        heap, turn, depth = self._heap, self._turn, self.blocks.depth
        while heap:
            access, above, count, blocks = heap[0]
            while blocks and turn[blocks[-1]] != count:
                blocks.pop()
                self._stored -= 1
            if blocks and (above == -depth[blocks[-1]] or self._alone()):
                return blocks[-1]  # type: ignore[no-any-return]
            heappop(heap)
            self._stored -= len(blocks)
            self._push(access, count, blocks)
        raise NoCandidate("LRU holds no candidate")

    def _alone(self) -> bool:
        """Whether no other entry has the first one's last access, so that its blocks' depths do not matter."""
        return all(other[0] > self._heap[0][0] for other in self._heap[1:3])

    def evicted(self, block: BlockId, now: float) -> None:
        self._turn[block] = 0

    def victims(self, count: int, now: float) -> list[BlockId]:
        turn = self._turn
        chosen: list[BlockId] = []
        while len(chosen) < count:
            first, (_, _, number, blocks) = self.victim(now), self._heap[0]
            taken: Any = blocks[len(chosen) - count :] if self._alone() else [first]
            del blocks[-len(taken) :]
            self._stored -= len(taken)
            named = [block for block in reversed(taken) if turn[block] == number]
            for block in named:
                turn[block] = 0
            chosen += named
        return chosen
