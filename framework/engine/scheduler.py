"""Which rows run next, on which blocks, and which are preempted for them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Sequence
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.errors import OutOfBlocks

Scheduling = Literal["admit_first", "running_first"]

_sum = np.add.reduce  # what ndarray.sum() calls, at a third of its cost for the few rows of a step


class Scheduler:
    """Chooses each step's work.

    Admission is first come, first served within a priority, bounded by tokens and rows a step and by
    `Allocator.fits`. A row that cannot get room takes it from the least important, newest row, which is recomputed
    later and comes back before anything that has not started.

    The order is *admit_first*: waiting sequences get rows and blocks for all their tokens, then all rows their new
    tokens. Or *running_first*, as in vLLM: running rows come first, in order of admission, each with the tokens it
    lacks, as far as the budget goes, and the blocks for them; who finds none preempts the newest. Where nobody was
    preempted, waiting sequences are admitted, each if the pool has room for all its tokens, with the blocks of its
    first chunk. What a row fills in this step is published as soon as it has its blocks, so every later row of the step
    shares it. Source: vLLM 0.33.0, vllm/v1/core/sched/scheduler.py, Scheduler.schedule, with policy=fcfs.

    Args:
        max_batch_tokens: tokens computed a step.
        chunk_size: most prompt tokens of one row a step.
    """

    def __init__(
        self, state: EngineState, life: Lifecycle, *, max_batch_tokens: int, chunk_size: int, order: Scheduling
    ) -> None:
        self.state, self.life, self.promises = state, life, state.promises
        self.max_batch_tokens, self.chunk_size = max_batch_tokens, chunk_size
        self.running_first = order == "running_first"
        self._ends_steps, self._block_size = state.guarded.ends_steps, state.guarded.block_size

    def schedule(self) -> Step | None:
        """Admit, choose each row's new tokens and make room for them. None if there is nothing to compute."""
        promises = self.promises
        if promises.made:  # the last step did not finish: nothing that it promised was computed
            for seq in list(promises.made):
                self.life.withdraw(seq)
        self.state.tiers.poll()
        decodes_only = False
        if self.running_first:
            num_new = self._continue_and_admit()
        else:
            self._place_ready()
            self.admit(self.max_batch_tokens)
            num_new, decodes_only = self._plan()
            self._make_room(num_new)
        if promises.planned or promises.made:
            self._require_promised(num_new)
        return self._step(num_new, decodes_only)

    def admit(self, budget: int, num_new: IntArray | None = None) -> None:
        """Move waiting sequences onto rows while rows, token budget and blocks last.

        Args:
            num_new: running_first: (max_rows,), takes the first chunk of each. None: the next chunk of each running row
                comes off the budget, and sequences get blocks for all their tokens.
        """
        state, promises, waiting, tiers = self.state, self.promises, self.state.waiting, self.state.tiers
        if waiting.peek() is None:
            return
        if num_new is None:
            budget = self._left_by_rows(budget)
        while budget > 0:
            if promises.planned and waiting:
                self._promise_planned()
            seq = waiting.peek()
            if seq is None:
                return
            no_row = state.rows.num_free - state.reserved_rows < 1 + seq.forks_due
            if no_row and tiers.full:
                return
            hit = seq.hit = state.guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
            plan = None if tiers.full else tiers.plan(seq, hit)
            if plan is not None and tiers.park(seq, plan):
                waiting.pop()
                continue
            if plan is None and no_row:
                return
            hit = hit if plan is None else plan.hit
            if not state.guarded.fits(seq.info, seq.tokens, hit):
                tiers.prefetch(seq, hit)
                return
            if state.observers is not None:
                state.note("ask", seq, hit=hit)
            count = len(seq.tokens) - hit.num_tokens
            room = None
            if num_new is not None:
                # A beam among others waits with its last token: the next step computes those together.
                count = min(count - seq.is_among_beams, budget, self.chunk_size)
                if self._ends_steps and count:
                    end = hit.num_tokens + count
                    count = state.guarded.step_end(seq.info, hit.num_tokens, end, hit) - hit.num_tokens
                    if not count:
                        return
                room = hit.num_tokens + max(1, count)
            state.guarded.allocate(seq.info, seq.tokens, hit, room)
            if tiers.begin(seq, hit, plan):
                waiting.pop()
                continue
            self.life.place(seq, hit.num_tokens, room=room)
            waiting.pop()
            self.life.admitted(seq, hit.num_tokens)
            if num_new is None:
                promises.plan(seq)
                count = min(count, self.chunk_size)
            else:
                if count:
                    self._make_room_for(seq, count)
                if seq.row < 0:
                    continue
                num_new[seq.row] = count
            budget -= count

    def _left_by_rows(self, budget: int) -> int:
        """What the next chunks of the running rows leave of the budget; they plan to promise them."""
        rows, promises = self.state.rows, self.promises
        active = rows.active()
        need = np.minimum(rows.length[active] - rows.computed[active], max(1, self.chunk_size))
        total = int(_sum(need))
        budget -= total
        if budget > 0 and total > len(active):  # each row needs at least one token
            for row in active[need > 1].tolist():
                promises.plan(rows.sequence(row))
        return budget

    def _promise_planned(self) -> None:
        """A sequence is about to be looked up: promise what was planned since."""
        rows, promises = self.state.rows, self.promises
        planned, promises.planned = promises.planned, []
        for seq in planned:
            if seq.row >= 0:
                promises.make(seq, min(int(rows.length[seq.row]), int(rows.computed[seq.row]) + self.chunk_size))

    def _require_promised(self, num_new: IntArray) -> None:
        """Withdraw what rows promised and, as planned, do not compute; who is preempted for it gets no new tokens."""
        self.promises.planned = []
        for seq, end in list(self.promises.made.items()):
            if seq.row >= 0 and self.state.rows.computed[seq.row] + num_new[seq.row] < end:
                self.life.withdraw(seq)
                self._drop_empty(num_new)

    def _place_ready(self) -> None:
        """Give rows to sequences whose blocks have all been loaded, while there are any."""
        state, ready = self.state, self.state.tiers.ready
        while ready and state.rows.num_free - state.reserved_rows >= 1 + ready[0][0].forks_due:
            seq, num_cached = ready.pop(0)
            self.life.place(seq, num_cached)
            self.life.admitted(seq, num_cached)

    def _continue_and_admit(self) -> IntArray:
        """New tokens for each row, (max_rows,), and their blocks: running_first."""
        state, rows = self.state, self.state.rows
        num_new = np.zeros(rows.max_rows, dtype=np.int64)
        preempted = state.metrics.num_preemptions
        budget = self._continue(num_new)
        if state.metrics.num_preemptions == preempted:
            self.admit(budget, num_new)
            if not num_new.any():  # beams that came back and found all but their last tokens cached
                self._continue(num_new)
        self._drop_empty(num_new)
        return num_new

    def _drop_empty(self, num_new: IntArray) -> None:
        """Rows that somebody has left compute nothing."""
        num_new[[row for row, seq in enumerate(self.state.rows.sequences) if seq is None]] = 0

    def _continue(self, num_new: IntArray) -> int:
        """New tokens and blocks for the running rows; returns what is left of the budget."""
        rows, budget = self.state.rows, self.max_batch_tokens
        held_rows = self._held_rows() if self.state.groups else []
        for row, seq in [(row, rows.sequence(row)) for row in rows.active().tolist()]:
            if seq.row != row:
                continue
            group = seq.request.group  # one step computes the last tokens of all its beams, if the budget lets it
            beams = [] if group is None else [beam for beam in group.live if beam.row >= 0]
            waits = row in held_rows or budget < sum(not num_new[beam.row] for beam in beams)
            need = int(rows.length[row] - rows.computed[row]) - waits
            count = min(need, budget, max(1, self.chunk_size))
            if self._ends_steps and need > 1:
                count = self._whole_states(row, count)
            if count <= 0:
                continue
            self._make_room_for(seq, count)
            if seq.row == row:
                num_new[row] = count
                budget -= count
        return budget

    def _make_room_for(self, seq: Sequence, count: int) -> None:
        """Blocks for the next `count` tokens of `seq`, which has a row, and the promise of what they fill."""
        rows, row, size = self.state.rows, seq.row, self._block_size
        start = int(rows.computed[row])
        end = start + count
        if end > rows.room[row] or rows.touch[row]:
            self._extend(seq, end)
        fills = end // size > start // size
        if fills and self.promises.chunk_size and seq.row == row and not seq.is_among_beams:
            self.promises.make(seq, end)

    def _step(self, num_new: IntArray, decodes_only: bool) -> Step | None:
        """The step that computes so many new tokens of each row; None if there are none.

        Args:
            decodes_only: no row has more than one, as is known already.
        """
        state, rows = self.state, num_new.nonzero()[0]
        if not len(rows):
            return None
        chosen = num_new[rows]
        num_decodes = len(rows) if decodes_only else int(np.count_nonzero(chosen == 1))
        if num_decodes < len(rows):
            # Decode rows first, each part in a fixed order: by row.
            rows = rows[np.argsort(chosen > 1, kind="stable")]
            chosen = num_new[rows]
        computed = state.rows.computed[rows]
        sampled = (computed + chosen == state.rows.length[rows]).nonzero()[0]
        return Step(state.step_number, rows, chosen, computed, num_decodes, sampled)

    def _plan(self) -> tuple[IntArray, bool]:
        """New tokens for each row, (max_rows,): every decode row one, prompts what the budget leaves, oldest first.

        And whether no row has more than one.
        """
        rows = self.state.rows
        num_new = np.zeros(rows.max_rows, dtype=np.int64)
        active = rows.active()
        need = rows.length[active] - rows.computed[active]
        if self.state.groups:
            for row in self._held_rows():
                need[active == row] -= 1
        decodes = need == 1
        num_new[active] = decodes
        num_decodes = int(np.count_nonzero(decodes))
        if num_decodes == len(active):
            return num_new, True
        budget = self.max_batch_tokens - num_decodes
        prompts = (need > 1).nonzero()[0].tolist()
        made = self.promises.made
        if made:
            prompts.sort(key=lambda i: rows.sequence(int(active[i])) not in made)
        for i in prompts:
            if budget <= 0:
                break
            count = min(int(need[i]), self.chunk_size, budget)
            if self._ends_steps:
                count = self._whole_states(int(active[i]), count)
            num_new[active[i]] = count
            budget -= count
        if self._ends_steps:
            self._drop_empty(num_new)
        return num_new, False

    def _whole_states(self, row: int, count: int) -> int:
        """Of the next `count` tokens of this row, those that this step computes, as the allocator has it."""
        seq, start = self.state.rows.sequence(row), int(self.state.rows.computed[row])
        return self.state.guarded.step_end(seq.info, start, start + count) - start

    def _held_rows(self) -> list[int]:
        """Rows of beam groups that must not compute their last token yet: the others of the group are not there."""
        rows, held_rows = self.state.rows, []
        for group in self.state.groups:
            ready = all(seq.row >= 0 and rows.length[seq.row] - rows.computed[seq.row] == 1 for seq in group.live)
            if not ready and len(group.live) > 1:
                held_rows += [seq.row for seq in group.live if seq.row >= 0]
        return held_rows

    def _make_room(self, num_new: IntArray) -> None:
        """Extend tables where needed, most important rows first; whoever is preempted gets no new tokens."""
        rows = self.state.rows
        target = rows.computed + num_new
        short = (target > rows.room) | rows.touch
        short &= num_new > 0
        if np.count_nonzero(short):  # at a tenth of what short.any() costs
            active = rows.active()
            chosen = active[short[active]]
            for row, count in zip(chosen.tolist(), target[chosen].tolist(), strict=True):
                seq = rows.sequences[row]
                if seq is not None:
                    self._extend(seq, count)
            if rows.active() is not active:
                self._drop_empty(num_new)

    def _extend(self, seq: Sequence, num_tokens: int) -> None:
        guarded = self.state.guarded
        while seq.row >= 0:
            try:
                change = guarded.extend(seq.id, num_tokens)
                self.state.tiers.flush()
                self.life.take_change(seq, change, guarded.table(seq.id, num_tokens=num_tokens, start=change.start))
            except OutOfBlocks as error:
                if not self._preempt_for(seq):
                    self.life.fail(seq, error)
                continue
            return

    def _preempt_for(self, seq: Sequence) -> bool:
        """Preempt the least important, newest request; False if `seq`'s own is the only one that runs."""
        rows, tiers = self.state.rows, self.state.tiers
        if tiers.give_up():
            return True
        running = list(map(rows.sequence, rows.active().tolist()))
        victim = running[-1]
        if all(other.request is seq.request for other in running):
            others = [other for other in running if other is not seq]
            if seq.request.group is not None or not others:
                if not tiers.busy:
                    return False
                others = [seq]  # blocks on their way to others fill the pool: it waits until they have arrived
            victim = others[-1]
        self.life.preempt(victim)
        return True
