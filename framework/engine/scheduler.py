"""Which rows run next, on which blocks, and who has to give theirs back?"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.engine.beam import BeamGroup
from framework.engine.executors.base import Executor, Step
from framework.engine.promises import Promises
from framework.engine.request import Sequence, Status
from framework.engine.rows import IntArray, Rows
from framework.errors import FrameworkError, InvalidArgument, OutOfBlocks
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.allocator import Allocator
from framework.types import TableChange

Log = Callable[..., Any]


def _raise(seq: Sequence, error: FrameworkError) -> None:
    raise error


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


class Scheduler:
    """Keeps the rows, the waiting queue and the block tables in step with each other.

    Admission is first come, first served within a priority, bounded by tokens and rows a step and by
    `Allocator.fits`. A row that cannot get room takes it from the least important, newest row, which is recomputed
    later and comes back before anything that has not started.

    Args:
        max_batch_tokens: tokens computed a step.
        max_batch_requests: rows.
        chunk_size: most prompt tokens of one row a step; None leaves it to `max_batch_tokens`.
        max_model_len: longest sequence, tokens.
        share_within_step: rows admitted later in a step share the blocks that earlier rows compute in it.

    Attributes:
        foresee: told of each sequence that is about to give back its blocks, and whether it will want them again. A
            replay that knows the future passes it on to `Allocator.foresee`.
    """

    def __init__(
        self,
        allocator: Allocator,
        executor: Executor,
        *,
        max_batch_tokens: int,
        max_batch_requests: int,
        chunk_size: int | None,
        max_model_len: int,
        share_within_step: bool = False,
        log: Log | None = None,
    ) -> None:
        if max_batch_requests < 1:
            raise InvalidArgument(f"engine.max_batch_requests must be at least 1, found {max_batch_requests}")
        if max_batch_tokens < max_batch_requests:
            raise InvalidArgument(
                f"engine.max_batch_tokens ({max_batch_tokens}) must be at least engine.max_batch_requests "
                f"({max_batch_requests}): every row decodes one token a step"
            )
        if chunk_size is not None and chunk_size < 1:
            raise InvalidArgument(f"engine.chunk_size must be at least 1 or null, found {chunk_size}")
        self.allocator, self.executor = allocator, executor
        self.guarded = GuardedAllocator(allocator, -(-max_model_len // allocator.block_size))
        self.max_batch_tokens, self.chunk_size = max_batch_tokens, chunk_size or max_batch_tokens
        self.rows = Rows(max_batch_requests, max_model_len)
        self.waiting = WaitingQueue()
        self.groups: list[BeamGroup] = []
        self.promises = Promises(self) if share_within_step else None
        self.reserved_rows = 0
        self.num_preemptions = self.num_forks = self.num_copied_blocks = 0
        self.copy_seconds = 0.0
        self.step_number = 0
        self.fail: Callable[[Sequence, FrameworkError], None] = _raise
        self.foresee: Callable[[Sequence, bool], None] | None = None
        self._log = log

    # The life of one sequence

    def admit(self, budget: int) -> None:
        """Move waiting sequences onto rows while rows, token budget and blocks last."""
        guarded, rows = self.guarded, self.rows
        if self.waiting.peek() is None:
            return
        active = rows.active()
        budget -= int((rows.length[active] - rows.computed[active]).sum())
        if self.promises is not None and budget > 0:
            for row in active[rows.length[active] - rows.computed[active] > 1].tolist():
                self.promises.plan(rows.sequence(row))
        while budget > 0:
            if self.promises is not None and self.waiting:
                self.promises.make()
            seq = self.waiting.peek()
            if seq is None or rows.num_free - self.reserved_rows < 1 + seq.forks_due:
                return
            try:
                hit = seq.hit = guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
                if not guarded.fits(seq.info, seq.tokens, hit):
                    return
                guarded.allocate(seq.info, seq.tokens, hit)
                self.place(seq, hit.num_tokens)
            except FrameworkError as error:
                self.fail(seq, error)
                continue
            self.waiting.pop()
            self._seated(seq, hit.num_tokens)
            if self.promises is not None:
                self.promises.plan(seq)
            budget -= len(seq.tokens) - hit.num_tokens

    def _seated(self, seq: Sequence, num_cached: int) -> None:
        request = seq.request
        if not seq.was_admitted:
            request.num_cached_tokens += num_cached
            request.first_scheduled_s = self.executor.now()
        else:
            again = seq.computed_before - num_cached
            request.num_recomputed_tokens += max(0, again)
            request.num_spared_tokens += max(0, -again)
        seq.was_admitted = True
        seq.hit = None
        seq.committed = num_cached
        request.status = Status.RUNNING
        self.reserved_rows += seq.forks_due
        self.log("admit", seq, cached=num_cached)

    def place(self, seq: Sequence, computed: int) -> None:
        """Give `seq`, which has a table, a row; `computed` of its tokens have their KV.

        Raises:
            PluginError: the table is none. It was given back.
        """
        size = self.guarded.block_size
        try:
            table = self.guarded.table(seq.id, len(seq.tokens) if computed == 0 else computed)
        except FrameworkError:
            self._free(seq)
            raise
        row = self.rows.add(seq, computed, len(table) * size)
        self.executor.set_table(row, 0, table)
        self.executor.fresh(table[-(-computed // size) :])

    def release(self, seq: Sequence, *, returning: bool = False) -> None:
        """Give back the row and the blocks of `seq`; `returning` when it is preempted and will want them again."""
        row = seq.row
        self.executor.clear_table(row)
        seq.computed_before = int(self.rows.computed[row])
        self.rows.remove(seq)
        self.reserved_rows -= seq.forks_due
        if self.promises is not None:
            self.promises.withdraw(seq)
        if self.foresee is not None:
            try:
                self.foresee(seq, returning)
            except FrameworkError as error:
                seq.request.plugin_error = seq.request.plugin_error or error
        self._free(seq)

    def _free(self, seq: Sequence) -> None:
        """A plugin that fails here fails the request in the end, not whoever asked for its blocks."""
        try:
            self.guarded.free(seq.id)
        except FrameworkError as error:
            seq.request.plugin_error = seq.request.plugin_error or error

    def preempt(self, seq: Sequence) -> None:
        """Give back the blocks of `seq`, and of its whole beam group; they wait to be recomputed."""
        group = seq.request.group
        for member in list(group.live) if group else [seq]:
            if member.row >= 0:
                self.release(member, returning=True)
                self.num_preemptions += 1
                member.request.num_preemptions += 1
                self.log("preempt", member)
                self.waiting.push(member)
        if seq.request.plugin_error is not None:
            self.fail(seq, seq.request.plugin_error)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> bool:
        """Give `child` a table that shares the parent's first `num_tokens`, and a row.

        False if blocks or rows ran out: `child` then waits, to be computed from its tokens.
        """
        child.was_admitted, child.computed_before = True, num_tokens
        if self.rows.num_free == 0:
            self.waiting.push(child)
            return False
        try:
            change = self.guarded.fork(parent.id, child.info, num_tokens)
            try:
                self._copy(change)
            except FrameworkError:
                self._free(child)
                raise
            self.place(child, num_tokens)
        except OutOfBlocks:
            self.waiting.push(child)
            return False
        except FrameworkError as error:
            self.fail(parent, error)
            return False
        self.num_forks += 1
        child.committed = parent.committed
        if parent.row >= 0:
            self.rows.touch[parent.row] = True
        self.log("fork", child, parent=parent.id)
        return True

    def _copy(self, change: TableChange) -> None:
        if change.copies:
            start = self.executor.now()
            self.executor.copy_blocks(change.copies)
            self.copy_seconds += self.executor.now() - start
            self.num_copied_blocks += len(change.copies)

    def commit(self, seq: Sequence, num_tokens: int) -> None:
        """Tell the allocator that the first `num_tokens` of `seq`, which has a row, have their KV."""
        if num_tokens <= seq.committed:
            return
        row = seq.row
        change = self.guarded.commit(seq.id, self.rows.known[row, :num_tokens])
        seq.committed = num_tokens
        if change.start * self.guarded.block_size < self.rows.room[row]:
            self._update_table(seq, change.start)

    def _update_table(self, seq: Sequence, start: int) -> None:
        size = self.guarded.block_size
        table = self.guarded.table(seq.id, start=start)
        self.executor.set_table(seq.row, start, table[start:])
        self.rows.room[seq.row] = len(table) * size

    # One step

    def schedule(self) -> Step | None:
        """Admit, choose each row's new tokens and make room for them. None if there is nothing to compute."""
        if self.promises is not None:
            self.promises.withdraw_all()
        self.admit(self.max_batch_tokens)
        num_new = self._make_room(self._plan())
        if self.promises is not None:
            self.promises.require(num_new)
        rows = num_new.nonzero()[0]
        if not len(rows):
            return None
        chosen = num_new[rows]
        num_decodes = int(np.count_nonzero(chosen == 1))
        if num_decodes < len(rows):
            # Decode rows first, each part in a fixed order: by row.
            rows = rows[np.argsort(chosen > 1, kind="stable")]
            chosen = num_new[rows]
        computed = self.rows.computed[rows]
        sampled = (computed + chosen == self.rows.length[rows]).nonzero()[0]
        return Step(self.step_number, rows, chosen, computed, num_decodes, sampled)

    def _plan(self) -> IntArray:
        """New tokens for each row, (max_rows,): every decode row one, prompts what the budget leaves, oldest first."""
        rows = self.rows
        num_new = np.zeros(rows.max_rows, dtype=np.int64)
        active = rows.active()
        need = rows.length[active] - rows.computed[active]
        for row in self._held_rows():
            need[active == row] -= 1
        decodes = need == 1
        num_new[active] = decodes
        num_decodes = int(np.count_nonzero(decodes))
        if num_decodes == len(active):
            return num_new
        budget = self.max_batch_tokens - num_decodes
        prompts = (need > 1).nonzero()[0].tolist()
        if self.promises:
            prompts.sort(key=lambda i: rows.sequence(int(active[i])) not in self.promises)
        for i in prompts:
            if budget <= 0:
                break
            count = min(int(need[i]), self.chunk_size, budget)
            num_new[active[i]] = count
            budget -= count
        return num_new

    def _held_rows(self) -> list[int]:
        """Rows of beam groups that must not compute their last token yet: the others of the group are not there."""
        held = []
        for group in self.groups:
            ready = all(s.row >= 0 and self.rows.length[s.row] - self.rows.computed[s.row] == 1 for s in group.live)
            if not ready and len(group.live) > 1:
                held += [seq.row for seq in group.live if seq.row >= 0]
        return held

    def _make_room(self, num_new: IntArray) -> IntArray:
        """Extend tables where needed, most important rows first; whoever is preempted gets no new tokens."""
        rows = self.rows
        target = rows.computed + num_new
        short = (target > rows.room) | rows.touch
        short &= num_new > 0
        if short.any():
            active = rows.active()
            chosen = active[short[active]]
            for row, count in zip(chosen.tolist(), target[chosen].tolist(), strict=True):
                seq = rows.sequences[row]
                if seq is not None:
                    self._extend(seq, count)
            in_use = np.zeros(rows.max_rows, dtype=bool)
            in_use[rows.active()] = True
            num_new[~in_use] = 0
        return num_new

    def _extend(self, seq: Sequence, num_tokens: int) -> None:
        while seq.row >= 0:
            try:
                change = self.guarded.extend(seq.id, num_tokens)
                self._take_change(seq, change, self.guarded.table(seq.id, num_tokens, change.start))
            except OutOfBlocks as error:
                if not self._preempt_for(seq):
                    self.fail(seq, error)
                continue
            except FrameworkError as error:
                self.fail(seq, error)
            return

    def _take_change(self, seq: Sequence, change: TableChange, table: npt.NDArray[np.int32]) -> None:
        row, executor, count = seq.row, self.executor, len(table)
        if change.start < count:
            new = table[change.start :]
            copied = [copy.destination for copy in change.copies]
            executor.fresh(new[~np.isin(new, copied)] if copied else new)
            self._copy(change)
            executor.set_table(row, change.start, new)
        self.rows.room[row] = count * self.guarded.block_size
        self.rows.touch[row] = False

    def _preempt_for(self, seq: Sequence) -> bool:
        """Preempt the least important, newest request; False if `seq`'s own is the only one that runs."""
        active = self.rows.active()
        victim = self.rows.sequence(int(active[-1]))
        if victim.request is seq.request and all(self.rows.sequence(int(r)).request is seq.request for r in active):
            others = [self.rows.sequence(int(row)) for row in active if self.rows.sequence(int(row)) is not seq]
            if seq.request.group is not None or not others:
                return False
            victim = others[-1]
        self.preempt(victim)
        return True

    def log(self, event: str, seq: Sequence, **facts: Any) -> None:
        """One line of the scheduling log: no wall clock, no object ids."""
        if self._log is not None:
            self._log(event, step=self.step_number, request=seq.request.number, sequence=seq.id, **facts)
