"""Least recently used goes first."""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId

_MANY = 16  # blocks from which on NumPy's overhead a call is less than a loop's
_INT32, _INT64, _INTP = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.intp)


class Lru(EvictionPolicy):
    """Smallest (last_access, deepest first) goes first: a prefix outlives its suffixes.

    Blocks released together share their last access and come deepest first, so a release is one entry of a queue: no
    sorting, O(1) a block for each callback, amortised for `victim`. Blocks offered late (older than the queue's newest)
    go to a heap, O(log n). 4 bytes a block, and 40 to 80 a queued one.

    Source: the classic; deepest first as in vLLM v1/core/kv_cache_manager.py (free in reverse order).
    """

    recency_stack = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._last, self._depth = blocks.last_access, blocks.depth
        self._turn = array("q", [0]) * len(blocks.depth)  # which release holds the block; 0: none
        self._count = 0
        self._size = 0
        self._stored = 0
        self._newest = -1
        self._queue: deque[tuple[int, int, list[BlockId]]] = deque()  # (last access, turn, blocks shallowest first)
        self._late: list[tuple[int, int, int, BlockId]] = []  # (last access, -depth, turn, block)
        self._head: list[BlockId] = []  # the queue's first blocks, while nothing is late: the short way for `victim`
        self._head_turn = 0

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        turn = self._turn
        for block in blocks:
            turn[block] = 0
        self._size -= len(blocks)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._count += 1
        count, turn, last = self._count, self._turn, self._last
        access = last[blocks[0]]
        in_order = access > self._newest
        packed = _packed(blocks[::-1])
        if len(blocks) >= _MANY and isinstance(last, memoryview):
            # Views are made anew each time: kept, they would part from their columns when the policy is copied.
            indices = np.frombuffer(packed, dtype=_INT32).astype(_INTP)
            np.frombuffer(turn, dtype=_INT64)[indices] = count
            in_order = in_order and not np.count_nonzero(np.asarray(last)[indices] != access)
        else:
            for block in blocks:
                turn[block] = count
                if last[block] != access:
                    in_order = False
        if in_order:
            self._newest = access
            self._queue.append((access, count, packed))
        else:
            self._head = []
            for block in blocks:
                heapq.heappush(self._late, (last[block], -self._depth[block], count, block))
        self._size += len(blocks)
        self._stored += len(blocks)
        if self._stored > 64 + 4 * self._size:
            self._compact()

    def victim(self, now: float) -> BlockId:
        head = self._head
        if head and self._turn[head[-1]] == self._head_turn:
            return head[-1]
        return self._first()

    def _first(self) -> BlockId:
        """The first candidate, found by dropping what was used again since it was queued."""
        turn, queue, late = self._turn, self._queue, self._late
        while queue:
            access, count, blocks = queue[0]
            while blocks and turn[blocks[-1]] != count:
                blocks.pop()
                self._stored -= 1
            if blocks:
                break
            queue.popleft()
        while late and turn[late[0][3]] != late[0][2]:
            heapq.heappop(late)
            self._stored -= 1
        if not queue and not late:
            raise NoCandidate("LRU holds no candidate")
        if not late:
            self._head, self._head_turn = blocks, count
            return blocks[-1]
        if queue and (access, -self._depth[blocks[-1]]) <= late[0][:2]:
            return blocks[-1]
        return late[0][3]

    def evicted(self, block: BlockId, now: float) -> None:
        if self._turn[block]:
            self._turn[block] = 0
            self._size -= 1
            head = self._head
            if head and head[-1] == block:
                head.pop()
                self._stored -= 1

    def victims(self, count: int, now: float) -> list[BlockId]:
        chosen: list[BlockId] = []
        while len(chosen) < count:
            block, head = self.victim(now), self._head
            if not head or head[-1] != block:
                self.evicted(block, now)
                chosen.append(block)
                continue
            last: Any = head[len(chosen) - count :]
            del head[len(chosen) - count :]
            last.reverse()
            self._stored -= len(last)
            chosen += self._leave(last)
        return chosen

    def _leave(self, last: Any) -> list[BlockId]:
        """Those of these entries of the head that hold still: evicted."""
        turn, head_turn = self._turn, self._head_turn
        if len(last) < _MANY:
            named = [block for block in last if turn[block] == head_turn]
            for block in named:
                turn[block] = 0
        else:
            turns, indices = np.frombuffer(turn, dtype=_INT64), np.frombuffer(last, dtype=_INT32).astype(_INTP)
            holds = turns[indices] == head_turn
            if np.count_nonzero(holds) != len(indices):
                indices = indices[holds]
            turns[indices] = 0
            named = indices.tolist()
        self._size -= len(named)
        return named

    def _compact(self) -> None:
        """Forget entries of blocks that were used again."""
        turn, self._head = self._turn, []
        kept = (
            (access, count, _packed([b for b in blocks if turn[b] == count])) for access, count, blocks in self._queue
        )
        self._queue = deque(entry for entry in kept if entry[2])
        self._late = [entry for entry in self._late if turn[entry[3]] == entry[2]]
        heapq.heapify(self._late)
        self._stored = sum(len(blocks) for _, _, blocks in self._queue) + len(self._late)


def _packed(blocks: Sequence[BlockId]) -> Any:
    """A list in all that is asked of it here, at 4 bytes a block instead of 36."""
    return array("i", blocks)
