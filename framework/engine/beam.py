"""Beam search: the continuations of a request's beams that live on."""

from __future__ import annotations

import numpy as np

from framework.engine.lifecycle import Lifecycle
from framework.engine.request import (
    BeamGroup,
    Completion,
    Continuation,
    Request,
    Sequence,
    Status,
    TokenLogprobs,
)
from framework.engine.state import EngineState
from framework.errors import FrameworkError


class BeamSearch:
    """Moves beam groups one token on."""

    def __init__(self, state: EngineState, life: Lifecycle) -> None:
        self.state, self.life = state, life

    def by_group(self, beams: list[tuple[int, Sequence]]) -> list[tuple[BeamGroup, list[tuple[int, Sequence]]]]:
        groups: dict[int, tuple[BeamGroup, list[tuple[int, Sequence]]]] = {}
        for at, seq in beams:
            if seq.request.group is not None:
                groups.setdefault(id(seq.request.group), (seq.request.group, []))[1].append((at, seq))
        return list(groups.values())

    def step(self, group: BeamGroup, entries: list[tuple[int, Sequence]]) -> None:
        request, now = entries[0][1].request, self.state.executor.now()
        if request.status.ended:
            return
        at = {seq: i for i, seq in entries}
        index = np.array([at[seq] for seq in group.live], dtype=np.int64)
        k = group.num_candidates
        _, ids, values = self.state.executor.logprobs(index, np.zeros(len(index), dtype=np.int64), k)
        if not np.isfinite(values[:, 0]).all():
            self.life.fail_unsound(request)
            return
        self.life.mark_first_token(request, now)
        length = int(self.state.rows.length[group.live[0].row]) + 1
        ways = [way for way in group.rank(ids.tolist(), values.tolist()) if np.isfinite(way.cumulative)]
        ending, living = group.split(ways, lambda token: self.life.why_stop(request, token, 0) == "stop")
        num_generated = length - len(request.prompt)
        for way in ending:
            group.end(self._beam_completion(group, way, "stop"), num_generated)
        best = living[0].cumulative if living else -np.inf
        if length >= request.max_total_tokens or not living or group.is_done(best, num_generated):
            if length >= request.max_total_tokens:
                for way in living:
                    group.end(self._beam_completion(group, way, "length"), num_generated)
            self._finish_beams(request, group)
        else:
            self._regroup(request, group, living)

    def _beam_completion(self, group: BeamGroup, way: Continuation, reason: str) -> Completion:
        seq, rows = group.live[way.parent], self.state.rows
        start = len(seq.request.prompt)
        tokens = [*rows.tokens[seq.row, start : int(rows.length[seq.row])].tolist(), way.token]
        wanted = seq.request.sampling.logprobs is not None
        logprobs = [*seq.logprobs, TokenLogprobs(way.logprob)] if wanted else None
        return Completion(tokens, reason, way.cumulative, logprobs)

    def _finish_beams(self, request: Request, group: BeamGroup) -> None:
        for seq in group.live:
            try:
                self.life.commit(seq, int(self.state.rows.computed[seq.row]))
            except FrameworkError as error:
                self.life.fail(seq, error)
                return
            self.life.release(seq)
            seq.done = True
        request.completions = group.completions()
        self.state.metrics.num_output_tokens += request.num_output_tokens
        self.life.end(request, Status.FINISHED)

    def _regroup(self, request: Request, group: BeamGroup, living: list[Continuation]) -> None:
        """Free beams without a successor, go on in place with the first of each, fork off the others."""
        rows, parents = self.state.rows, list(group.live)
        kept = {way.parent for way in living}
        for i, seq in enumerate(parents):
            if i not in kept:
                self.life.release(seq)
                seq.done = True
                request.sequences.remove(seq)
        self.state.reserved_rows -= sum(parents[i].forks_due for i in kept)
        for i in kept:
            parents[i].forks_due = 0
        heads: dict[int, tuple[Sequence, Continuation]] = {}
        live: list[Sequence] = []
        for way in living:
            parent = parents[way.parent]
            if way.parent not in heads:
                heads[way.parent] = (parent, way)
                live.append(parent)
                continue
            live.append(self._fork_beam(parent, way))
            if request.status.ended:
                return
        for parent, way in heads.values():
            rows.tokens[parent.row, rows.length[parent.row]] = way.token
            rows.length[parent.row] += 1
            self._extend_beam(parent, way)
        group.live = live
        if any(seq.row < 0 for seq in live):
            self._put_back(group)

    def _fork_beam(self, parent: Sequence, way: Continuation) -> Sequence:
        rows = self.state.rows
        length = int(rows.length[parent.row])
        tokens = np.append(rows.tokens[parent.row, :length], np.int32(way.token)).astype(np.int32)
        child = Sequence(self.state.take_id(), parent.request, parent.stream, tokens)
        child.cumulative_logprob, child.logprobs = parent.cumulative_logprob, list(parent.logprobs)
        parent.request.sequences.append(child)
        self.life.fork(parent, child, int(rows.computed[parent.row]))
        self._extend_beam(child, way)
        return child

    def _extend_beam(self, seq: Sequence, way: Continuation) -> None:
        seq.cumulative_logprob = way.cumulative
        if seq.request.sampling.logprobs is not None:
            seq.logprobs.append(TokenLogprobs(way.logprob))

    def _put_back(self, group: BeamGroup) -> None:
        """Blocks ran out while forking: the beams that have a table wait too, and come back together."""
        seated = next((seq for seq in group.live if seq.row >= 0), None)
        if seated is not None:
            self.life.preempt(seated)
