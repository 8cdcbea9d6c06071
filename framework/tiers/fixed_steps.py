"""Transfers whose copies are over a fixed number of steps after they were asked for, whenever the machine ends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from framework.tiers.transfers import Copy, Transfers
from framework.types import BlockHash


class FixedSteps:
    """Holds ended copies back until their step, in the order of asking, and waits for those that are late.

    What an engine does then depends on its steps alone, not on how fast the machine copies: two equal runs write equal
    logs. Nobody knows how long a load takes, and what other processes store meanwhile is not seen.

    Args:
        steps: from the asking to the end of a copy, at least 1.
        step_number: the engine's.
    """

    def __init__(self, transfers: Transfers, steps: int, step_number: Callable[[], int]) -> None:
        self._transfers, self._steps, self._step_number = transfers, steps, step_number
        self._asked: deque[tuple[int, Copy]] = deque()  # (step at which it is over, copy)
        self._ended: set[Copy] = set()

    @property
    def failure(self) -> str:
        """See Transfers."""
        return self._transfers.failure

    def submit(self, copies: Sequence[Copy]) -> None:
        """See Transfers."""
        due = self._step_number() + self._steps
        self._asked.extend((due, copy) for copy in copies)
        self._transfers.submit(copies)

    def remove(self, key: BlockHash, tier: int) -> None:
        """See Transfers."""
        self._transfers.remove(key, tier)

    def release(self, copy: Copy) -> None:
        """See Transfers."""
        self._transfers.release(copy)

    def finished(self) -> Sequence[Copy]:
        """See Transfers: those whose step has come."""
        now, over = self._step_number(), list[Copy]()
        self._ended.update(self._transfers.finished())
        while self._asked and self._asked[0][0] <= now:
            copy = self._asked.popleft()[1]
            while copy not in self._ended and self._transfers.num_pending:
                self._transfers.wait(None)
                self._ended.update(self._transfers.finished())
            self._ended.discard(copy)
            over.append(copy)
        return over

    def discovered(self) -> Sequence[tuple[int, Sequence[BlockHash]]]:
        """See Transfers: nothing."""
        return ()

    @property
    def num_pending(self) -> int:
        """See Transfers."""
        return len(self._asked)

    def wait(self, until: float | None) -> None:
        """See Transfers: the step of the copies asked for first comes now."""
        if self._asked:
            first, now = self._asked[0][0], self._step_number()
            self._asked = deque((min(due, now) if due == first else due, copy) for due, copy in self._asked)

    def load_times(self, tiers: Sequence[int]) -> tuple[float, ...] | None:
        """See Transfers: unknown."""
        return None

    def close(self, *, drain: bool) -> None:
        """See Transfers."""
        self._transfers.close(drain=drain)
