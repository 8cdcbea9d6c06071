"""A queue of resident blocks whose front is its first candidate, and what policies of such queues share."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockHash, BlockId


class Queue:
    """Keeps blocks in order of `append`, also while they are pinned; only shown blocks can be at the front.

    A block keeps its place through `hide` and `show`, as it would in a list that a scan skips over. Every operation
    is O(log n) amortised, and O(1) for a block that is shown again before the front has passed it.
    """

    def __init__(self) -> None:
        self._rank: dict[BlockId, int] = {}
        self._shown: set[BlockId] = set()
        self._heap: list[tuple[int, BlockId]] = []
        self._stacked: set[int] = set()  # ranks with an entry in the heap
        self._next_rank = 0

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, block: object) -> bool:
        return block in self._rank

    def append(self, block: BlockId) -> None:
        """Put it at the back, shown if it was shown."""
        self._rank[block] = self._next_rank
        self._next_rank += 1
        if block in self._shown:
            self._stack(block)

    def remove(self, block: BlockId) -> bool:
        """Take it out; says whether it was shown."""
        del self._rank[block]
        shown = block in self._shown
        self._shown.discard(block)
        return shown

    def move(self, block: BlockId, to: Queue) -> None:
        """Put it at the back of another queue, shown if it was shown."""
        shown = self.remove(block)
        to.append(block)
        if shown:
            to.show(block)

    def show(self, block: BlockId) -> None:
        self._shown.add(block)
        self._stack(block)

    def hide(self, block: BlockId) -> None:
        self._shown.discard(block)

    def front(self) -> BlockId | None:
        """The first candidate, None when there is none."""
        while self._heap:
            rank, block = self._heap[0]
            if block in self._shown and self._rank.get(block) == rank:
                return block
            heapq.heappop(self._heap)
            self._stacked.remove(rank)
        return None

    def _stack(self, block: BlockId) -> None:
        rank = self._rank[block]
        if rank in self._stacked:
            return
        self._stacked.add(rank)
        heapq.heappush(self._heap, (rank, block))
        if len(self._heap) > 64 + 4 * len(self._rank):
            self._heap = [(self._rank[shown], shown) for shown in self._shown]
            heapq.heapify(self._heap)
            self._stacked = {rank for rank, _ in self._heap}


class QueuePolicy(EvictionPolicy):
    """A policy whose every block lies in one queue, where it keeps its place while it is pinned."""

    @abstractmethod
    def _queue_of(self, block: BlockId) -> Queue:
        """The queue that a resident block lies in."""

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._queue_of(block).hide(block)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._queue_of(block).show(block)

    def _first_of(self, *queues: Queue) -> BlockId:
        """The front of the first queue that has a candidate; NoCandidate where none has."""
        for queue in queues:
            block = queue.front()
            if block is not None:
                return block
        raise NoCandidate(f"{type(self).__name__} holds no candidate")


class Recency:
    """Candidates in the order they were let go, deepest first among equals; for policies that track nothing else."""

    def __init__(self) -> None:
        self._order: OrderedDict[BlockId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, block: object) -> bool:
        return block in self._order

    def show(self, blocks: Iterable[BlockId]) -> None:
        """They are the most recent candidates now."""
        self._order.update(dict.fromkeys(blocks))

    def hide(self, block: BlockId) -> None:
        """It is a candidate no longer, if it was one."""
        self._order.pop(block, None)

    def front(self) -> BlockId | None:
        """The least recent candidate, None when there is none."""
        return next(iter(self._order), None)


class Ghosts:
    """Names of evicted contents, oldest first, with a value each. Bounded by `trim`, not by `add`.

    A policy that learns what is admitted only after it has named the victims trims after the admission, so that a
    name about to be found again is not pushed out by the evictions that make room for it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._values: OrderedDict[BlockHash | None, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def add(self, key: BlockHash | None, value: float = 0) -> None:
        """Remember it as the newest."""
        self._values[key] = value
        self._values.move_to_end(key)

    def pop(self, key: BlockHash | None) -> float | None:
        """Forget it and return its value; None when it was not remembered."""
        return self._values.pop(key, None)

    def drop_oldest(self) -> None:
        self._values.popitem(last=False)

    def trim(self) -> None:
        """Forget the oldest until no more than `capacity` are left."""
        while len(self._values) > self.capacity:
            self._values.popitem(last=False)
