"""Which rows run next, on which blocks, and which are preempted for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Sequence
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.errors import FrameworkError, OutOfBlocks

if TYPE_CHECKING:
    from framework.engine.tiers.engine_tiers import EngineTiers
    from framework.engine.tiers.records import Plan
    from framework.interfaces.allocator import Hit

_sum = np.add.reduce  # what ndarray.sum() calls, at a third of its cost for the few rows of a step


class Scheduler:
    """Chooses each step's work.

    Admission is first come, first served within a priority, bounded by tokens and rows a step and by
    `Allocator.fits`. A row that cannot get room takes it from the least important, newest row, which is recomputed
    later and comes back before anything that has not started.

    Args:
        max_batch_tokens: tokens computed a step.
        chunk_size: most prompt tokens of one row a step.

    Attributes:
        in_turn: sequences that end in one step are freed in order of admission, not of rows.
    """

    in_turn = False

    def __init__(self, state: EngineState, life: Lifecycle, *, max_batch_tokens: int, chunk_size: int) -> None:
        self.state, self.life = state, life
        self.max_batch_tokens, self.chunk_size = max_batch_tokens, chunk_size

    def admit(self, budget: int) -> None:
        """Move waiting sequences onto rows while rows, token budget and blocks last."""
        state = self.state
        guarded, rows, waiting, promises, tiers = (
            state.guarded, state.rows, state.waiting, state.promises, state.tiers,
        )  # fmt: skip
        if tiers is not None:
            self._place_ready(tiers)
        if waiting.peek() is None:
            return
        active = rows.active()
        need = rows.length[active] - rows.computed[active]
        total = int(_sum(need))
        budget -= total
        if promises is not None and budget > 0 and total > len(active):  # each row needs at least one token
            for row in active[need > 1].tolist():
                promises.plan(rows.sequence(row))
        while budget > 0:
            if promises is not None and promises.planned and waiting:
                promises.make()
            seq = waiting.peek()
            if seq is None:
                return
            no_row = rows.num_free - state.reserved_rows < 1 + seq.forks_due
            if no_row and (tiers is None or tiers.full):
                return
            try:
                hit = seq.hit = guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
                if tiers is not None:
                    plan = tiers.plan(seq, hit) if not tiers.full else None
                    if plan is not None and tiers.park(seq, plan):
                        waiting.pop()
                        continue
                    if plan is None and no_row:
                        return
                    hit = hit if plan is None else plan.hit
                if not guarded.fits(seq.info, seq.tokens, hit):
                    if tiers is not None:
                        tiers.prefetch(seq, hit)
                    return
                if state.ledger is not None:
                    self.life.ask_why(state.ledger, seq, hit)
                guarded.allocate(seq.info, seq.tokens, hit)
                if tiers is not None and self._begin_load(tiers, seq, hit, plan):
                    waiting.pop()
                    continue
                self.life.place(seq, hit.num_tokens)
            except FrameworkError as error:
                self.life.fail(seq, error)
                continue
            except Exception as error:
                self.life.fail_unforeseen(seq, error)
                continue
            waiting.pop()
            self.life.admitted(seq, hit.num_tokens)
            if promises is not None:
                promises.plan(seq)
            budget -= len(seq.tokens) - hit.num_tokens

    def _place_ready(self, tiers: EngineTiers) -> None:
        """Give rows to sequences whose blocks have all been loaded, while there are any."""
        state = self.state
        while tiers.ready and state.rows.num_free - state.reserved_rows >= 1 + tiers.ready[0][0].forks_due:
            seq, num_cached = tiers.ready.pop(0)
            try:
                self.life.place(seq, num_cached)
            except FrameworkError as error:
                self.life.fail(seq, error)
                continue
            self.life.admitted(seq, num_cached)

    def _begin_load(self, tiers: EngineTiers, seq: Sequence, hit: Hit, plan: Plan | None) -> bool:
        """`seq` has its table: whether it waits for blocks from below, and gets its row later.

        Raises:
            FrameworkError: it holds nothing any more.
        """
        try:
            tiers.allocated(seq, hit, plan)
            if plan is not None:
                tiers.begin(seq, plan)
        except Exception:
            if plan is not None:
                tiers.abandon(plan)
            self.life.free_table(seq)
            raise
        return plan is not None

    def schedule(self) -> Step | None:
        """Admit, choose each row's new tokens and make room for them. None if there is nothing to compute."""
        state, promises = self.state, self.state.promises
        if promises is not None and promises.made:
            promises.withdraw_all()
        if state.tiers is not None:
            state.tiers.poll()
        self.admit(self.max_batch_tokens)
        num_new, decodes_only = self._plan()
        num_new = self._make_room(num_new)
        if promises is not None and (promises.planned or promises.made):
            promises.require(num_new)
        return self._step(num_new, decodes_only)

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
        promises = self.state.promises
        if promises is not None and promises.made:
            made = promises.made
            prompts.sort(key=lambda i: rows.sequence(int(active[i])) not in made)
        for i in prompts:
            if budget <= 0:
                break
            count = min(int(need[i]), self.chunk_size, budget)
            num_new[active[i]] = count
            budget -= count
        return num_new, False

    def _held_rows(self) -> list[int]:
        """Rows of beam groups that must not compute their last token yet: the others of the group are not there."""
        held = []
        for group in self.state.groups:
            ready = all(
                s.row >= 0 and self.state.rows.length[s.row] - self.state.rows.computed[s.row] == 1 for s in group.live
            )
            if not ready and len(group.live) > 1:
                held += [seq.row for seq in group.live if seq.row >= 0]
        return held

    def _make_room(self, num_new: IntArray) -> IntArray:
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
                in_use = np.zeros(rows.max_rows, dtype=bool)
                in_use[rows.active()] = True
                num_new[~in_use] = 0
        return num_new

    def _extend(self, seq: Sequence, num_tokens: int) -> None:
        guarded = self.state.guarded
        while seq.row >= 0:
            if self.state.ledger is not None:
                self.state.ledger.serve(seq.request.number)  # each time: whoever is preempted is served as it leaves
            try:
                change = guarded.extend(seq.id, num_tokens)
                if self.state.tiers is not None:
                    self.state.tiers.flush()
                self.life.take_change(seq, change, guarded.table(seq.id, num_tokens, change.start))
            except OutOfBlocks as error:
                if not self._preempt_for(seq):
                    self.life.fail(seq, error)
                continue
            except FrameworkError as error:
                self.life.fail(seq, error)
            return

    def _preempt_for(self, seq: Sequence) -> bool:
        """Preempt the least important, newest request; False if `seq`'s own is the only one that runs."""
        rows, tiers = self.state.rows, self.state.tiers
        if tiers is not None and tiers.yield_room():
            return True
        active = rows.active()
        victim = rows.sequence(int(active[-1]))
        if victim.request is seq.request and all(rows.sequence(int(r)).request is seq.request for r in active):
            others = [rows.sequence(int(row)) for row in active if rows.sequence(int(row)) is not seq]
            if seq.request.group is not None or not others:
                if tiers is None or not tiers.busy:
                    return False
                others = [seq]  # blocks on their way to others fill the pool: it waits until they have arrived
            victim = others[-1]
        self.life.preempt(victim)
        return True
