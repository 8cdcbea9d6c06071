"""Sharing of blocks between rows of one step: what a row computes, later rows of the same step share."""

from __future__ import annotations

from framework.engine.request import Sequence
from framework.engine.rows import Rows
from framework.guard.allocator import GuardedAllocator
from framework.types import RequestId


class Promises:
    """Prompt tokens that this step computes, from admission until they are committed.

    An executor writes all rows' K and V of a layer before any row attends, so a row may share a block that another row
    of its step computes. A prompt promises the chunk it is going to compute, no more, and only once another sequence is
    about to be looked up. Whoever relies on a promise that is not kept (its maker was preempted, cancelled or failed,
    or the step did not finish) is preempted: its tokens are computed again, and nothing is read that was not written.

    Args:
        chunk_size: most prompt tokens of one row a step; 0: rows of one step share nothing.

    Attributes:
        planned: on a row, and to promise what they compute before the next sequence is looked up.
        made: how many of its tokens each sequence has promised. Empty in most steps, which is all they look at.
    """

    def __init__(self, guarded: GuardedAllocator, rows: Rows, chunk_size: int) -> None:
        self._guarded, self._rows, self.chunk_size = guarded, rows, chunk_size
        self.planned: list[Sequence] = []
        self.made: dict[Sequence, int] = {}

    def plan(self, seq: Sequence) -> None:
        """`seq`, on a row, computes a chunk of its prompt in this step."""
        if self.chunk_size and not seq.is_among_beams:  # which wait for one another: what they compute is not known
            self.planned.append(seq)

    def make(self, seq: Sequence, end: int) -> None:
        """`seq`, on a row with room for it, computes its tokens up to `end` in this step, generated ones included."""
        size = self._guarded.block_size
        if end // size == int(self._rows.computed[seq.row]) // size:  # no block is filled
            return
        self._guarded.promise(seq.id, self._rows.known[seq.row, :end])
        self.made[seq] = end

    def keep(self) -> None:
        """The step's tokens were computed and committed."""
        self.made.clear()

    def withdraw(self, seq: Sequence) -> set[RequestId]:
        """What `seq` promised is not computed: those that rely on it."""
        return set() if self.made.pop(seq, None) is None else {*self._guarded.withdraw(seq.id)}
