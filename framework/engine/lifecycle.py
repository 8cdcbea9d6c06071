"""The life of a sequence on its row, and how requests end: each exactly once and without harm to others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framework.engine.executors.base import Step
from framework.engine.request import Completion, MakeStopWatch, Request, Sequence, Status
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.errors import OutOfBlocks
from framework.types import TableChange


class Lifecycle:
    """Keeps rows, block tables and requests in step with each other, from a sequence's row to its request's end.

    NOTE: one class, because these are one recursion: a row that ends may end its request, which releases its others.
    """

    def __init__(self, state: EngineState, eos_token_ids: IntArray, stop_watch: MakeStopWatch | None = None) -> None:
        self.state, self.eos_token_ids, self._stop_watch = state, eos_token_ids, stop_watch
        self._size = state.guarded.block_size
        self._wide = [group.block_tokens // self._size for group in state.guarded.groups]

    # A sequence and its row

    def admitted(self, seq: Sequence, num_cached: int) -> None:
        """`seq` has just got its row, with the KV of its first `num_cached` tokens."""
        request = seq.request
        if not seq.was_admitted:
            request.num_cached_tokens += num_cached
            request.first_scheduled_s = self.state.executor.now()
            self.state.metrics.admitted(len(request.prompt), num_cached)
        else:
            again = seq.computed_before - num_cached
            request.num_recomputed_tokens += max(0, again)
            request.num_spared_tokens += max(0, -again)
        self.state.note("admit", seq, cached=num_cached)
        seq.was_admitted = True
        seq.hit = None
        seq.committed = num_cached
        request.status = Status.RUNNING
        self.state.reserved_rows += seq.forks_due

    def place(
        self, seq: Sequence, computed: int, *, room: int = 0, passed: int = 0, removed: int = 0, touch: bool = True
    ) -> None:
        """Give `seq`, which has a table, a row; `computed` of its tokens have their KV.

        Args:
            room: tokens that the table has blocks for at least.
            removed: of the computed tokens, those that were dropped.
            touch: the table must be extended before its next write.
        """
        table = self.state.guarded.table(seq.id, num_tokens=max(computed, room) - removed)
        row = self.state.rows.add(seq, computed, len(table) * self._size + removed, touch=touch)
        self.state.rows.passed[row], self.state.rows.removed[row] = passed, removed
        self.state.executor.set_table(row, 0, table)
        self.state.executor.fresh(table[-(-(computed - removed) // self._size) :])
        if self.state.guarded.groups:
            self._set_further(seq)

    def release(self, seq: Sequence, *, returning: bool = False) -> None:
        """Free the row and the blocks of `seq`; `returning` when it is preempted and will want them again."""
        row = seq.row
        if self.state.compressor is not None:
            self.state.compressor.released(seq)
        self.state.executor.clear_table(row)
        seq.computed_before = int(self.state.rows.computed[row])
        self.state.rows.remove(seq)
        self.state.reserved_rows -= seq.forks_due
        if not returning and self.state.tiers.ending(seq):
            return
        self.free_table(seq, None if self.state.foresee is None else self.state.foresee(seq, returning))

    def free_table(self, seq: Sequence, next_use: list[float] | None = None) -> None:
        """Free the table of `seq`."""
        self.state.guarded.free(seq.id, next_use or ())

    def preempt(self, seq: Sequence) -> None:
        """Free the blocks of `seq`, and of its whole beam group; they wait to be recomputed."""
        group = seq.request.group
        for member in list(group.live) if group else [seq]:
            if member.row >= 0:
                self.release(member, returning=True)
                self.state.metrics.num_preemptions += 1
                member.request.num_preemptions += 1
                self.state.note("preempt", member)
                self.state.waiting.push(member)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> bool:
        """Give `child` a table that shares the parent's first `num_tokens`, and a row.

        False if blocks or rows ran out: `child` then waits, to be computed from its tokens.
        """
        child.was_admitted, child.computed_before, rows = True, num_tokens, self.state.rows
        if rows.num_free == 0:
            self.state.waiting.push(child)
            return False
        try:
            change = self.state.guarded.fork(parent.id, child.info, num_tokens)
        except OutOfBlocks:
            self.state.waiting.push(child)
            return False
        self.state.tiers.flush()
        self.copy(change)
        passed, removed = (column[parent.row] if parent.row >= 0 else 0 for column in (rows.passed, rows.removed))
        self.place(child, num_tokens, passed=int(passed), removed=int(removed))
        if self.state.compressor is not None:
            self.state.compressor.forked(parent, child)
        self.state.metrics.num_forks += 1
        child.committed = parent.committed
        if parent.row >= 0:
            rows.touch[parent.row] = True
        self.state.note("fork", child, parent=parent.id)
        return True

    def copy(self, change: TableChange) -> None:
        """Copy the blocks that a change of a table asks for."""
        if change.copies:
            self.state.executor.copy_blocks(change.copies)
            self.state.metrics.num_copied_blocks += len(change.copies)

    def commit(self, seq: Sequence, num_tokens: int) -> None:
        """Tell the allocator that the first `num_tokens` of `seq`, which has a row, have their KV."""
        if num_tokens <= seq.committed:
            return
        row, before = seq.row, seq.committed
        change = self.state.guarded.commit(seq.id, self.state.rows.known[row, :num_tokens])
        seq.committed = num_tokens
        if not self.state.rows.removed[row]:  # else nothing of it is published
            self.state.tiers.committed(seq, before, num_tokens)
        if change.start * self._size < self.state.rows.room[row] - self.state.rows.removed[row]:
            self.take_table(seq, change.start)
        if self.state.guarded.groups:
            self._set_further(seq)

    def take_table(self, seq: Sequence, start: int) -> None:
        """The table of `seq` has changed from logical index `start` on: bring its row and the executor up to date."""
        table, row, rows = self.state.guarded.table(seq.id, start=start), seq.row, self.state.rows
        self.state.executor.set_table(row, start, table[start:])
        rows.room[row] = len(table) * self._size + rows.removed[row]

    def _set_further(self, seq: Sequence) -> None:
        """Hand the executor the tables of the groups of KV after the first; windows slide before there is no room."""
        state, row = self.state, seq.row
        computed = int(state.rows.computed[row])
        for group, wide in enumerate(self._wide[1:], 1):
            table = state.guarded.table(seq.id, group)[::wide]
            state.executor.set_table(row, 0, table, group)
            state.executor.fresh(table[-(-computed // (wide * self._size)) :], group)
        state.rows.room[row] = min(int(state.rows.room[row]), state.guarded.steady_tokens(seq.id))

    def unref_passed(self, step: Step, window: int) -> None:
        """Free blocks that no layer reads any more: every layer sees the last `window` tokens only, itself included.

        The step's tokens are committed: the next token of each row is at position `computed`.

        NOTE 1. A request still needs room for its whole prompt when it is admitted, and a hit still is a whole prefix:
        the gain is that of long outputs, and of long prompts that are computed in chunks.
        NOTE 2. The last full block of a row is kept even where the window is shorter: the next one is published below
        it.
        """
        rows, size, guarded = self.state.rows, self._size, self.state.guarded
        computed = rows.computed[step.rows]
        passed = np.minimum((computed + 1 - window) // size, computed // size - 1)
        due = (passed > rows.passed[step.rows]).nonzero()[0]
        for row, count in zip(step.rows[due].tolist(), passed[due].tolist(), strict=True):
            seq = rows.sequence(row)
            rows.passed[row] = count
            if guarded.unref_leading(seq.id, count * size):
                self.state.executor.set_table(row, 0, guarded.table(seq.id))

    def take_change(self, seq: Sequence, change: TableChange, table: npt.NDArray[np.int32]) -> None:
        """The table of `seq` is now `table`, changed as `change` says: bring its row and the executor up to date."""
        row, executor, count = seq.row, self.state.executor, len(table)
        if change.start < count:
            new = table[change.start :]
            copied = [copy.destination for copy in change.copies if copy.group == 0]
            executor.fresh(new[~np.isin(new, copied)] if copied else new)
            self.copy(change)
            executor.set_table(row, change.start, new)
        elif change.copies:  # of another group's blocks
            self.copy(change)
        self.state.rows.room[row] = count * self._size + self.state.rows.removed[row]
        self.state.rows.touch[row] = False
        if self.state.guarded.groups:
            self._set_further(seq)

    # How requests end

    def fail(self, seq: Sequence, error: OutOfBlocks) -> None:
        """End the request of `seq`, which the pool is too small for."""
        self.stop(seq.request, Status.FAILED, f"{type(error).__name__}: {error}")

    def fail_unsound(self, request: Request) -> None:
        """End `request`, whose logits are not finite. What it attended to leaves the cache and the tiers: some of it is
        not finite either, and would fail every later request that shares it."""
        for seq in request.sequences:
            if seq.row < 0:
                continue
            self.state.tiers.discard(seq)
            self.state.guarded.reset(seq.id)
        self.stop(request, Status.FAILED, f"logits not finite at step {self.state.step_number}")

    def stop(self, request: Request, status: Status, reason: str) -> None:
        """End a request wherever its sequences are: out of rows and queues; what they generated so far is kept."""
        for seq in request.sequences:
            if seq.row >= 0:
                self.release(seq)
            else:
                self.state.tiers.drop(seq)
        ended = [] if request.group is None else [completion for _, completion in request.group.ended]
        request.completions = ended + [
            self._completion(seq) for seq in sorted(request.sequences, key=lambda seq: seq.stream) if seq.generated
        ]
        for seq in request.sequences:
            seq.done = True
        self.end(request, status, reason)

    def end(self, request: Request, status: Status, reason: str = "") -> None:
        """Close a request whose sequences hold nothing any more."""
        request.status, request.reason = status, reason
        request.finished_s = self.state.executor.now()
        self.state.requests.pop(request.number, None)
        if request.group in self.state.groups:
            self.state.groups.remove(request.group)
        self.state.metrics.ended(request)
        if self.state.ordered is not None:
            self.state.ordered.ended(request)
        if request.sequences:
            self.state.note(status.value, request.sequences[0])
        if self.state.on_end is not None:
            self.state.on_end(request)

    def finish_row(self, seq: Sequence) -> None:
        """One sequence is complete; its request ends with the last of them."""
        if seq.row >= 0:
            self.commit(seq, int(self.state.rows.computed[seq.row]))
            self.release(seq)
        seq.done = True
        request = seq.request
        if all(other.done for other in request.sequences) and len(request.sequences) == request.sampling.n:
            request.completions = [
                self._completion(other) for other in sorted(request.sequences, key=lambda other: other.stream)
            ]
            self.end(request, Status.FINISHED)

    def _completion(self, seq: Sequence) -> Completion:
        """What a sequence without a row has generated; it was aborted unless it is done."""
        reason = "aborted"
        if seq.done:
            reason = seq.finish_reason or self.why_stop(seq.request, int(seq.tokens[-1]), len(seq.tokens))
        wanted = seq.request.sampling.logprobs is not None
        scored = wanted or seq.request.group is not None
        logprobs = list(seq.logprobs) if wanted else None
        return Completion(seq.generated, reason, seq.cumulative_logprob if scored else None, logprobs)

    def why_stop(self, request: Request, token: int, length: int) -> str:
        """ "stop", "length", or "" while a sequence of `length` tokens that just got `token` goes on."""
        sampling = request.sampling
        if token in sampling.stop_token_ids or (not sampling.ignore_eos and token in self.eos_token_ids):
            return "stop"
        return "length" if length >= request.max_total_tokens else ""

    def take_token(self, seq: Sequence, token: int, length: int) -> str:
        """`why_stop` of a sequence that just got `token`, stop texts included. Once a token."""
        reason = self.why_stop(seq.request, token, length)
        stops = seq.request.sampling.stop
        if stops and self._stop_watch is not None and reason != "stop":
            if seq.watch is None:
                seq.watch = self._stop_watch(seq.request.number, seq.stream, stops)
            if seq.watch.push(token):
                reason = "stop"
        seq.finish_reason = reason
        return reason

    def mark_first_token(self, request: Request, now: float) -> None:
        """Note when the request's first token came, once."""
        if request.first_token_s is None:
            request.first_token_s = now
