"""Sharing of blocks between rows of one step: what a row computes, later rows of the same step share."""

from __future__ import annotations

from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Sequence
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.errors import FrameworkError
from framework.types import RequestId


class Promises:
    """Prompt tokens that this step computes, from admission until they are committed.

    An executor writes all rows' K and V of a layer before any row attends, so a row may share a block that another row
    of its step computes. A prompt promises the chunk it is going to compute, no more, and only once another sequence is
    about to be looked up. Whoever relies on a promise that is not kept (its maker was preempted, cancelled or failed,
    or the step did not finish) is preempted: its tokens are computed again, and nothing is read that was not written.

    Attributes:
        planned: on a row, and to promise what they compute before the next sequence is looked up.
        made: how many of its tokens each sequence has promised. Empty in most steps, which is all they look at.
    """

    def __init__(self, state: EngineState, life: Lifecycle, chunk_size: int) -> None:
        self._state, self._life, self._chunk_size = state, life, chunk_size
        self.planned: list[Sequence] = []
        self.made: dict[Sequence, int] = {}

    def plan(self, seq: Sequence) -> None:
        """`seq`, on a row, computes a chunk of its prompt in this step."""
        group = seq.request.group
        if group is None or len(group.live) == 1:  # beams wait for one another: what they compute is not known yet
            self.planned.append(seq)

    def make(self) -> None:
        """Promise what was planned since: a sequence is about to be looked up."""
        planned, self.planned = self.planned, []
        for seq in planned:
            if seq.row < 0:
                continue
            start, end = int(self._state.rows.computed[seq.row]), int(self._state.rows.length[seq.row])
            self._promise(seq, start, min(end, start + self._chunk_size))

    def make_at_once(self, seq: Sequence, end: int) -> None:
        """`seq`, on a row with room for it, computes its tokens up to `end` in this step, generated ones included."""
        group = seq.request.group
        if group is None or len(group.live) == 1:
            self._promise(seq, int(self._state.rows.computed[seq.row]), end)

    def _promise(self, seq: Sequence, start: int, end: int) -> None:
        guarded = self._state.guarded
        if end // guarded.block_size == start // guarded.block_size:
            return
        ledger = self._state.ledger
        if ledger is not None:
            ledger.promise(True)
        try:
            guarded.promise(seq.id, self._state.rows.known[seq.row, :end])
        except FrameworkError as error:
            self._life.fail(seq, error)
            return
        finally:
            if ledger is not None:
                ledger.promise(False)
        self.made[seq] = end

    def require(self, num_new: IntArray) -> None:
        """Withdraw what rows promised and, as planned, do not compute. Sets `num_new` of rows preempted for it to 0."""
        self.planned = []
        rows = self._state.rows
        for seq, end in list(self.made.items()):
            if seq.row >= 0 and rows.computed[seq.row] + num_new[seq.row] < end:
                self.withdraw(seq)
                num_new[[row for row, other in enumerate(rows.sequences) if other is None]] = 0

    def keep(self) -> None:
        """The step's tokens were computed and committed."""
        self.made.clear()
        if self._state.ledger is not None:
            self._state.ledger.kept_promises()

    def withdraw_all(self) -> None:
        """The last step did not finish: nothing that it promised was computed."""
        for seq in list(self.made):
            self.withdraw(seq)

    def withdraw(self, seq: Sequence) -> None:
        """What `seq` promised is not computed: preempt whoever relies on it."""
        if self.made.pop(seq, None) is None:
            return
        relying = self._withdraw(seq)
        for other in list(self._state.rows.sequences):
            if other is not None and other is not seq and other.id in relying and other.row >= 0:
                self._life.preempt(other)
        for other in self._state.tiers.holding():
            if other is not seq and other.id in relying:
                self._state.tiers.drop(other, returning=True)

    def _withdraw(self, seq: Sequence) -> set[RequestId]:
        guarded = self._state.guarded
        try:
            return {*guarded.withdraw(seq.id)}
        except FrameworkError as error:
            seq.request.plugin_error = seq.request.plugin_error or error
        try:
            return {*guarded.withdraw(seq.id)}
        except FrameworkError as error:
            seq.request.plugin_error = seq.request.plugin_error or error
            everyone = [*self._state.rows.sequences, *self._state.tiers.holding()]
            return {other.id for other in everyone if other is not None} - {seq.id}
