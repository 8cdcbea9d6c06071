"""What becomes of a step's logits: tokens on rows, samples forked off, beams moved on, sequences finished."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from framework.engine.executors.base import BoolArray, Step
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
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.interfaces.workload import Candidates


class Outputs:
    """Draws each sampled row's next token and acts on it.

    Args:
        candidates: gets those of each step of a beam search, by request number; None: they are not kept.
    """

    def __init__(self, state: EngineState, life: Lifecycle, candidates: dict[int, list[Candidates]] | None) -> None:
        self.state, self.life = state, life
        self.beams = BeamSearch(state, life, candidates)

    def sample(self, step: Step) -> None:
        rows = self.state.rows
        where = step.rows[step.sampled]
        indices, streams = np.arange(len(where), dtype=np.int64), rows.stream[where]
        beams: dict[BeamGroup, dict[Sequence, int]] = {}
        if np.count_nonzero(rows.special[where]):
            indices, streams, beams = self._expand(where)
        if len(indices):
            tokens, bad = self.state.executor.sample(indices, streams, step, rows)
            self._append(where[indices], indices, streams, tokens, bad)
        for group, places in beams.items():
            self.beams.step(group, places)

    def _expand(self, where: IntArray) -> tuple[IntArray, IntArray, dict[BeamGroup, dict[Sequence, int]]]:
        """Index into the sampled rows, and stream, of each token to draw; apart, the index of each beam, by group."""
        indices: list[int] = []
        streams: list[int] = []
        beams: dict[BeamGroup, dict[Sequence, int]] = {}
        for i, row in enumerate(where):
            seq = self.state.rows.sequences[int(row)]
            if seq is None:
                continue
            if seq.request.group is not None:
                beams.setdefault(seq.request.group, {})[seq] = i
                continue
            # The parent's own token comes last: it may end it, and the others fork from it.
            for k in (*range(1, 1 + seq.forks_due), 0):
                indices.append(i)
                streams.append(seq.stream + k)
        return np.array(indices, dtype=np.int64), np.array(streams, dtype=np.int64), beams

    def _append(self, where: IntArray, indices: IntArray, streams: IntArray, tokens: IntArray, bad: BoolArray) -> None:
        """Give each drawn token to its row; fork, finish and fail where it says so."""
        rows, now = self.state.rows, self.state.executor.now()
        present = rows.length[where] > 0
        plain = present & ~(rows.special[where] | bad)
        special: list[tuple[int, Sequence]] = []
        plain_rows, plain_tokens = where, tokens
        if np.count_nonzero(plain) < len(plain):
            special = [(i, rows.sequence(int(where[i]))) for i in (present & ~plain).nonzero()[0].tolist()]
            plain_rows, plain_tokens = where[plain], tokens[plain]
        lengths = rows.length[plain_rows]
        rows.tokens[plain_rows, lengths] = plain_tokens
        for row in plain_rows[lengths == rows.first_output[plain_rows]].tolist():
            self.life.mark_first_token(rows.sequence(row).request, now)
        lengths += 1
        rows.length[plain_rows] = lengths
        self.state.metrics.num_output_tokens += len(plain_rows)
        ended = lengths >= rows.limit[plain_rows]
        for end_of_text in self.life.eos_token_ids.tolist():  # a few; np.isin costs more than all else here
            ended |= (plain_tokens == end_of_text) & ~rows.ignore_eos[plain_rows]
        over = plain_rows[ended]
        if len(over) > 1:  # freed in order of admission, not of rows
            over = over[np.argsort(rows.order[over], kind="stable")]
        for row in over.tolist():
            self.life.finish_row(rows.sequence(row))
        logprobs = self._logprobs([(i, seq) for i, seq in special if not bad[i]], indices, tokens)
        for i, seq in special:
            if seq.row == where[i]:
                self._append_special(seq, logprobs.get(i), int(streams[i]), int(tokens[i]), bool(bad[i]), now)

    def _append_special(
        self, parent: Sequence, logprobs: TokenLogprobs | None, stream: int, token: int, bad: bool, now: float
    ) -> None:
        """One token of a row with stop ids, log-probabilities or forks due, or with logits that are not finite."""
        rows, request = self.state.rows, parent.request
        if bad:
            self.life.fail_unsound(request)
            return
        self.life.mark_first_token(request, now)
        seq = parent
        if stream != parent.stream:
            seq = self._fork_sample(parent, stream, token)
        else:
            rows.tokens[parent.row, rows.length[parent.row]] = token
            rows.length[parent.row] += 1
            self.life.take_token(parent, token, int(rows.length[parent.row]))
        self.state.metrics.num_output_tokens += 1
        if logprobs is not None:
            seq.logprobs.append(logprobs)
            seq.cumulative_logprob += logprobs.chosen
        if seq.finish_reason:
            self.life.finish_row(seq)

    def _fork_sample(self, parent: Sequence, stream: int, token: int) -> Sequence:
        """Sample `stream` of a request leaves its parent after the prompt, with its own first token."""
        request = parent.request
        child = Sequence(
            self.state.take_id(), request, stream, np.append(request.prompt, np.int32(token)).astype(np.int32)
        )
        child.was_admitted = True
        request.sequences.append(child)
        parent.forks_due -= 1
        self.state.reserved_rows -= 1
        if parent.forks_due == 0 and not (
            request.sampling.stop_token_ids or request.sampling.stop or request.sampling.logprobs is not None
        ):
            self.state.rows.special[parent.row] = False
        if not self.life.take_token(child, token, len(child.tokens)):
            self.life.fork(parent, child, len(request.prompt))
        return child

    def _logprobs(
        self, special: list[tuple[int, Sequence]], indices: IntArray, tokens: IntArray
    ) -> dict[int, TokenLogprobs]:
        """The log-probabilities of the rows that ask for them, by index into `indices`: one call of the executor."""
        counts = {i: seq.request.sampling.logprobs for i, seq in special}
        wanted = {i: k for i, k in counts.items() if k is not None}
        if not wanted:
            return {}
        rows = np.array(list(wanted), dtype=np.int64)
        drawn = self.state.executor.logprobs(indices[rows], tokens[rows], max(wanted.values()))
        logprobs = {}
        for (i, k), chosen, ids, values in zip(wanted.items(), *drawn, strict=True):
            top = tuple((int(token), float(value)) for token, value in zip(ids[:k], values[:k], strict=True))
            logprobs[i] = TokenLogprobs(float(chosen), top)
        return logprobs


class BeamSearch:
    """Moves beam groups one token on."""

    def __init__(self, state: EngineState, life: Lifecycle, candidates: dict[int, list[Candidates]] | None) -> None:
        self.state, self.life, self._candidates = state, life, candidates

    def step(self, group: BeamGroup, places: Mapping[Sequence, int]) -> None:
        """Move `group` on; `places` has the index of each live beam among the sampled rows."""
        request, now = group.live[0].request, self.state.executor.now()
        if request.status.ended:
            return
        index = np.array([places[seq] for seq in group.live], dtype=np.int64)
        k = group.num_candidates
        _, ids, values = self.state.executor.logprobs(index, np.zeros(len(index), dtype=np.int64), k)
        found = ids.tolist(), values.tolist()
        if self._candidates is not None:
            self._candidates.setdefault(request.number, []).append(found)
        if not np.isfinite(values[:, 0]).all():
            self.life.fail_unsound(request)
            return
        self.life.mark_first_token(request, now)
        length = int(self.state.rows.length[group.live[0].row]) + 1
        ways = [way for way in group.rank(*found) if np.isfinite(way.cumulative)]
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
        seq = group.live[way.parent]
        tokens = [*self.state.rows.generated(seq).tolist(), way.token]
        wanted = seq.request.sampling.logprobs is not None
        logprobs = [*seq.logprobs, TokenLogprobs(way.logprob)] if wanted else None
        return Completion(tokens, reason, way.cumulative, logprobs)

    def _finish_beams(self, request: Request, group: BeamGroup) -> None:
        for seq in group.live:
            self.life.commit(seq, int(self.state.rows.computed[seq.row]))
            self.life.release(seq)
            seq.done = True
        request.completions = [completion for _, completion in group.ended]
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
        first: dict[int, Continuation] = {}
        live: list[Sequence] = []
        for way in living:
            parent = parents[way.parent]
            if first.setdefault(way.parent, way) is way:
                live.append(parent)
                continue
            live.append(self._fork_beam(parent, way))
        for i, way in first.items():
            row = parents[i].row
            rows.tokens[row, rows.length[row]] = way.token
            rows.length[row] += 1
            self._extend_beam(parents[i], way)
        group.live = live
        placed = [seq for seq in live if seq.row >= 0]
        if placed and len(placed) < len(live):  # blocks ran out while forking: all wait, and come back together
            self.life.preempt(placed[0])

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
