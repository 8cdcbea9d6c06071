"""A schedule in vLLM's order: running rows before waiting sequences, and blocks for a chunk at a time."""

from __future__ import annotations

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.request import Sequence
from framework.engine.rows import IntArray
from framework.engine.scheduler import Scheduler
from framework.errors import FrameworkError


class RunningFirst(Scheduler):
    """Chooses each step's work as vLLM's scheduler does.

    Running rows come first, in order of admission: each gets the tokens it lacks, as far as the budget goes, and the
    blocks for them; who finds none preempts the newest. Where nobody was preempted, waiting sequences are admitted,
    each if the pool has room for all its tokens, with the blocks of its first chunk. What a row fills in this step is
    published as soon as it has its blocks, so every later row of the step shares it.

    Source: vLLM 0.33.0, vllm/v1/core/sched/scheduler.py, Scheduler.schedule, with policy=fcfs.
    """

    in_turn = True

    def schedule(self) -> Step | None:
        state, rows, promises = self.state, self.state.rows, self.state.promises
        if promises is not None and promises.made:
            promises.withdraw_all()
        num_new = np.zeros(rows.max_rows, dtype=np.int64)
        preempted = state.num_preemptions
        budget = self._continue(num_new)
        if state.num_preemptions == preempted:
            self._admit(num_new, budget)
            if not num_new.any():  # beams that came back and found all but their last tokens cached
                self._continue(num_new)
        if promises is not None:
            promises.require(num_new)
        num_new[[row for row, seq in enumerate(rows.sequences) if seq is None]] = 0
        return self._step(num_new, decodes_only=False)

    def _continue(self, num_new: IntArray) -> int:
        """New tokens and blocks for the running rows; returns what is left of the budget."""
        rows, budget = self.state.rows, self.max_batch_tokens
        held = self._held_rows() if self.state.groups else []
        for row, seq in [(row, rows.sequence(row)) for row in rows.active().tolist()]:
            if seq.row != row:
                continue
            need = int(rows.length[row] - rows.computed[row]) - (row in held or self._too_wide(seq, num_new, budget))
            count = min(need, budget, max(1, self.chunk_size))
            if count <= 0:
                continue
            self._make_room_for(seq, count)
            if seq.row == row:
                num_new[row] = count
                budget -= count
        return budget

    def _too_wide(self, seq: Sequence, num_new: IntArray, budget: int) -> bool:
        """Whether `seq` is of a beam group whose last tokens do not all fit the budget: one step computes them."""
        group = seq.request.group
        return group is not None and budget < sum(not num_new[beam.row] for beam in group.live if beam.row >= 0)

    def _make_room_for(self, seq: Sequence, count: int) -> None:
        """Blocks for the next `count` tokens of `seq`, which has a row, and the promise of what they fill."""
        rows, row = self.state.rows, seq.row
        end = int(rows.computed[row]) + count
        if end > rows.room[row] or rows.touch[row]:
            self._extend(seq, end)
        if self.state.promises is not None and seq.row == row:
            self.state.promises.make_at_once(seq, end)

    def _admit(self, num_new: IntArray, budget: int) -> None:
        """Move waiting sequences onto rows while rows, token budget and blocks last."""
        state, rows, waiting = self.state, self.state.rows, self.state.waiting
        while budget > 0:
            seq = waiting.peek()
            if seq is None or rows.num_free - state.reserved_rows < 1 + seq.forks_due:
                return
            try:
                count = self._place(seq, budget)
            except FrameworkError as error:
                self.life.fail(seq, error)
                continue
            except Exception as error:
                self.life.fail_unforeseen(seq, error)
                continue
            if count is None:
                return
            if count:
                self._make_room_for(seq, count)
            if seq.row >= 0:
                num_new[seq.row] = count
                budget -= count

    def _place(self, seq: Sequence, budget: int) -> int | None:
        """Give `seq` a table for its first chunk, and a row; returns the chunk, None where not all of it fits the pool.

        A beam among others does without its last token until the next step: they compute that together.
        """
        guarded = self.state.guarded
        hit = seq.hit = guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
        if not guarded.fits(seq.info, seq.tokens, hit):
            return None
        group = seq.request.group
        waits = group is not None and len(group.live) > 1
        count = min(len(seq.tokens) - hit.num_tokens - waits, budget, self.chunk_size)
        room = hit.num_tokens + max(1, count)
        if self.state.ledger is not None:
            self.life.ask_why(self.state.ledger, seq, hit)
        guarded.allocate_part(seq.info, seq.tokens, hit, room)
        self.life.place(seq, hit.num_tokens, room=room)
        self.state.waiting.pop()
        self.life.admitted(seq, hit.num_tokens)
        return count
