"""The queue of sequences that wait for a row."""

from __future__ import annotations

import heapq

from framework.engine.request import Sequence


class WaitingQueue:
    """Sequences without a row: higher priority first, then preempted ones, then oldest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int, Sequence]] = []

    def push(self, seq: Sequence) -> None:
        """Enter, or re-enter after a preemption."""
        restored = 0 if seq.was_admitted else 1
        heapq.heappush(self._heap, (-seq.request.priority, restored, seq.request.number, seq.id, seq))

    def peek(self) -> Sequence | None:
        """The next to admit; drops those that were ended meanwhile."""
        while self._heap and self._heap[0][-1].done:
            heapq.heappop(self._heap)
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> Sequence:
        """Remove and return what `peek` shows."""
        return heapq.heappop(self._heap)[-1]

    def __len__(self) -> int:
        return sum(not entry[-1].done for entry in self._heap)

    def __bool__(self) -> bool:
        return self.peek() is not None
