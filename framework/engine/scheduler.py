"""Which rows run next, on which blocks, and which are preempted for them."""

from __future__ import annotations

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Sequence
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.errors import OutOfBlocks
from framework.interfaces.allocator import Hit
from framework.interfaces.observer import Note


class Scheduler:
    """Chooses each step's work, in vLLM's order.

    Running rows come first, the most important and oldest before the others, each with the tokens it lacks, as far as
    the budget goes, and with blocks for them. A row that finds no blocks preempts the least important, newest row,
    which is recomputed later and comes back before anything that has not started. Where nobody was preempted, waiting
    sequences are admitted, as far as rows, budget and blocks last: first come, first served within a priority, each if
    the pool has room for all its tokens, with the blocks of its first chunk. A sequence with blocks below the pool gets
    those that are loaded, and a row once they have arrived, before others are admitted.

    NOTE. What a row fills in this step is published as soon as it has its blocks, so that every later row of the step
    shares it. It is then computed in this step: who needs blocks preempts a row that comes after it and has none of
    its own for this step yet, and who is admitted preempts nobody.

    Source: vLLM 0.33.0, vllm/v1/core/sched/scheduler.py, Scheduler.schedule, with policy=fcfs.

    Args:
        max_batch_tokens: tokens computed a step.
        chunk_size: most tokens of one row a step.
    """

    def __init__(self, state: EngineState, life: Lifecycle, *, max_batch_tokens: int, chunk_size: int) -> None:
        self.state, self.life = state, life
        self.max_batch_tokens, self.chunk_size = max_batch_tokens, chunk_size
        self._ends_steps, self._block_size = state.guarded.ends_steps, state.guarded.block_size

    def schedule(self) -> Step | None:
        """Each row's new tokens, with room made for them. None if there is nothing to compute."""
        self.state.tiers.poll()
        num_new = np.zeros(self.state.rows.max_rows, dtype=np.int64)
        budget = self._continue(num_new)
        end: tuple[str, Sequence | None] | None = None
        if budget > 0:
            end = self.admit(self._admit_loaded(budget, num_new), num_new)
            if not num_new.any() and self.state.groups:  # beams that came back and found all but their last tokens
                self._continue(num_new)
        if self.state.observers is not None:
            why, refused = end or ("budget" if int(num_new.sum()) >= self.max_batch_tokens else "blocks", None)
            number = -1 if refused is None else refused.request.number
            facts = {"why": why, "time_s": self.state.executor.now()}
            self.state.observers.noted(Note("queue", self.state.step_number, number, refused, facts))
        return self._step(num_new)

    def _step(self, num_new: IntArray) -> Step | None:
        """The step that computes so many new tokens of each row, (max_rows,); None if there are none."""
        state, rows = self.state, num_new.nonzero()[0]
        if not len(rows):
            return None
        chosen = num_new[rows]
        num_decodes = int(np.count_nonzero(chosen == 1))
        if num_decodes < len(rows):
            # Decode rows first, each part in a fixed order: by row.
            rows = rows[np.argsort(chosen > 1, kind="stable")]
            chosen = num_new[rows]
        computed = state.rows.computed[rows]
        sampled = (computed + chosen == state.rows.length[rows]).nonzero()[0]
        return Step(state.step_number, rows, chosen, computed, num_decodes, sampled)

    # What runs

    def _continue(self, num_new: IntArray) -> int:
        """New tokens and their blocks for the running rows.

        Returns what is left of the budget; 0 where blocks ran out, so that nobody is admitted.
        """
        rows, size = self.state.rows, self._block_size
        active = rows.active()
        if not len(active):
            return self.max_batch_tokens
        counts = self._chunks(active)
        num_new[active] = counts
        start = rows.computed[active]
        end = start + counts
        due = ((end > rows.room[active]) | rows.touch[active] | (end // size > start // size)) & (counts > 0)
        enough = True
        if np.count_nonzero(due):  # at a tenth of what due.any() costs
            for row, count in zip(active[due].tolist(), end[due].tolist(), strict=True):
                seq = rows.sequences[row]
                if seq is not None:
                    enough &= self._make_room(seq, count)
            if rows.active() is not active:
                num_new[[row for row, seq in enumerate(rows.sequences) if seq is None]] = 0
        return self.max_batch_tokens - int(counts.sum()) if enough else 0

    def _chunks(self, active: IntArray) -> IntArray:
        """How many new tokens of each of these rows, in order, this step computes.

        The beams of a group compute their last tokens in one step, once all of them lack no other, if the budget lets
        it.
        """
        rows = self.state.rows
        counts = rows.length[active] - rows.computed[active]
        together = []
        for group in self.state.groups:
            if len(group.live) > 1:
                beams = np.isin(active, [seq.row for seq in group.live])
                if np.count_nonzero(beams) == len(group.live) and (counts[beams] == 1).all():
                    together.append(beams)
                else:
                    counts[beams] -= 1
        prompts = (counts > 1).nonzero()[0].tolist()
        for place in prompts:
            seq = rows.sequence(int(active[place]))
            left = self.max_batch_tokens - int(counts[:place].sum())
            counts[place] = self._chunk(seq, int(rows.computed[seq.row]), int(counts[place]), left)
        if prompts:  # else each row has one token at most, which every budget lets it
            counts[counts.cumsum() > self.max_batch_tokens] = 0
            for beams in together:
                counts[beams] *= counts[beams].all()
        return counts

    def _chunk(self, seq: Sequence, start: int, need: int, budget: int, hit: Hit | None = None) -> int:
        """How many of the `need` tokens that `seq` lacks from `start` on this step computes.

        Args:
            hit: of a sequence that is about to be admitted.
        """
        count = max(0, min(need, budget, self.chunk_size))
        if count > 1 and self.state.ordered is not None:
            count = self.state.ordered.share(seq, need, count)
        if count and self.state.compressor is not None:
            count = self.state.compressor.step_end(seq, start, start + count) - start
        if count and self._ends_steps:
            whole = int(count == need and seq.is_among_beams)  # all but its last token, which waits for other beams
            count = min(count, self.state.guarded.step_end(seq.info, start, start + count + whole, hit) - start)
        return count

    def _make_room(self, seq: Sequence, end: int) -> bool:
        """Blocks for the tokens of `seq`, which runs, up to `end`; False if others gave theirs up for it."""
        guarded, tiers, enough = self.state.guarded, self.state.tiers, True
        while seq.row >= 0:
            try:
                change = guarded.extend(seq.id, end)
            except OutOfBlocks as error:
                enough = False
                if tiers.give_up():
                    continue
                victim = self._victim(seq)
                if victim is None:
                    self.life.fail(seq, error)
                else:
                    self.life.preempt(victim)
                continue
            tiers.flush()
            stored = end - int(self.state.rows.removed[seq.row])
            self.life.take_change(seq, change, guarded.table(seq.id, num_tokens=stored, start=change.start))
            self._publish(seq, end)
            break
        return enough

    def _victim(self, seq: Sequence) -> Sequence | None:
        """Who is preempted so that `seq` gets blocks: the least important, newest row; None where nobody else has any.

        A plugin chooses among `seq` and the rows after it: those before it have their blocks for this step.
        """
        rows, ordered = self.state.rows, self.state.ordered
        running = list(map(rows.sequence, rows.active().tolist()))
        last = running[-1]
        others = last.request.group is None and len(running) > 1
        if others or self.state.tiers.busy or any(seq.request is not last.request for seq in running):
            return last if ordered is None else ordered.victim(running[running.index(seq) :])
        return None

    def _publish(self, seq: Sequence, end: int) -> None:
        """Let later rows of this step share what `seq` fills up to `end`; not of beams, which wait for one another."""
        rows, size = self.state.rows, self._block_size
        if end // size > int(rows.computed[seq.row]) // size and not seq.is_among_beams:
            self.state.guarded.publish(seq.id, rows.known[seq.row, :end])

    # What waits

    def _has_row(self, seq: Sequence) -> bool:
        return self.state.rows.num_free - self.state.reserved_rows > seq.forks_due

    def _admit_loaded(self, budget: int, num_new: IntArray) -> int:
        """Let sequences run whose blocks have arrived from below the pool; returns what is left of the budget."""
        ready = self.state.tiers.ready
        while budget > 0 and ready and self._has_row(ready[0][0]):
            seq, start = ready[0]
            count = self._chunk(seq, start, len(seq.tokens) - start - seq.is_among_beams, budget)
            if not self._begin(seq, start, count):
                return 0
            del ready[0]
            num_new[seq.row] = count
            budget -= count
        return 0 if ready else budget

    def admit(self, budget: int, num_new: IntArray) -> tuple[str, Sequence | None]:
        """Let waiting sequences run, or load what lies below the pool, while rows, budget and blocks last.

        Returns which of the three did not last, and who was refused for it, where somebody was.
        """
        state, guarded, tiers, waiting = self.state, self.state.guarded, self.state.tiers, self.state.waiting
        while budget > 0:
            if state.rows.num_free <= state.reserved_rows:  # nobody is asked who is next
                return "rows", None
            if (seq := waiting.peek()) is None:
                break
            if not self._has_row(seq):
                return "rows", seq
            hit = seq.hit = guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
            plan = None if tiers.full else tiers.plan(seq, hit)
            if plan is not None and tiers.park(seq, plan):
                waiting.pop()
                continue
            hit = hit if plan is None else plan.hit
            if not guarded.fits(seq.info, seq.tokens, hit):
                tiers.prefetch(seq, hit)
                return "blocks", seq
            start = hit.num_tokens
            need = len(seq.tokens) - start - seq.is_among_beams
            count = 0 if plan is not None else self._chunk(seq, start, need, budget, hit)
            if plan is None and need and not count:
                return "budget", seq
            if state.observers is not None:
                state.note("ask", seq, hit=hit)
            room = start + max(1, count) if plan is None else plan.num_tokens + 1
            guarded.allocate(seq.info, seq.tokens, hit, room)
            if tiers.begin(seq, hit, plan):
                waiting.pop()
                continue
            if not self._begin(seq, start, count):
                self.life.free_table(seq)
                return "blocks", seq
            waiting.pop()
            num_new[seq.row] = count
            budget -= count
        return "budget", None

    def _begin(self, seq: Sequence, start: int, count: int) -> bool:
        """Give `seq`, which has a table, a row and blocks for `count` tokens from `start` on; False if those lack."""
        try:
            change = self.state.guarded.extend(seq.id, start + count)
        except OutOfBlocks:
            return False
        self.state.tiers.flush()
        self.life.copy(change)
        self.life.place(seq, start, room=start + count, touch=not count)
        self.life.admitted(seq, start)
        self._publish(seq, start + count)
        return True
