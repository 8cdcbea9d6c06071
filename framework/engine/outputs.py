"""What becomes of a step's logits: tokens on rows, samples forked off, sequences finished."""

from __future__ import annotations

import numpy as np

from framework.engine.beam import BeamSearch
from framework.engine.executors.base import BoolArray, Step
from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Sequence, TokenLogprobs
from framework.engine.rows import IntArray
from framework.engine.state import EngineState
from framework.errors import FrameworkError


class Outputs:
    """Draws each sampled row's next token and acts on it.

    Args:
        in_turn: sequences that end in one step are freed in order of admission, not of rows.
    """

    def __init__(self, state: EngineState, life: Lifecycle, *, in_turn: bool = False) -> None:
        self.state, self.life, self._in_turn = state, life, in_turn
        self.beams = BeamSearch(state, life)

    def sample(self, step: Step) -> None:
        rows = self.state.rows
        where = step.rows[step.sampled]
        if not np.count_nonzero(rows.special[where]):
            at, streams = np.arange(len(where), dtype=np.int64), rows.stream[where]
            if len(at):
                self._append(where, at, streams, *self.state.executor.sample(at, streams, step, rows))
            return
        at, streams, beams = self._expand(where)
        if len(at):
            tokens, bad = self.state.executor.sample(at, streams, step, rows)
            self._append(where[at], at, streams, tokens, bad)
        for group, entries in self.beams.by_group(beams):
            try:
                self.beams.step(group, entries)
            except FrameworkError:
                raise
            except Exception as error:
                self.life.fail_unforeseen(entries[0][1], error)

    def _expand(self, where: IntArray) -> tuple[IntArray, IntArray, list[tuple[int, Sequence]]]:
        """Index into the sampled rows, and stream, of each token to draw; beam rows apart."""
        at: list[int] = []
        streams: list[int] = []
        beams: list[tuple[int, Sequence]] = []
        for i, row in enumerate(where):
            seq = self.state.rows.sequences[int(row)]
            if seq is None:
                continue
            if seq.request.group is not None:
                beams.append((i, seq))
                continue
            # The parent's own token comes last: it may end it, and the others fork from it.
            for k in (*range(1, 1 + seq.forks_due), 0):
                at.append(i)
                streams.append(seq.stream + k)
        return np.array(at, dtype=np.int64), np.array(streams, dtype=np.int64), beams

    def _append(self, where: IntArray, at: IntArray, streams: IntArray, tokens: IntArray, bad: BoolArray) -> None:
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
        if self._in_turn and len(over) > 1:
            over = over[np.argsort(rows.order[over], kind="stable")]
        for row in over.tolist():
            self.life.finish_row(rows.sequence(row))
        logprobs = self._logprobs([(i, seq) for i, seq in special if not bad[i]], at, tokens)
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
        if request.status.ended:  # the fork failed; what the child drew is kept
            return
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
        self, special: list[tuple[int, Sequence]], at: IntArray, tokens: IntArray
    ) -> dict[int, TokenLogprobs]:
        """The log-probabilities of the rows that ask for them, by index into `at`: one call of the executor."""
        counts = {i: seq.request.sampling.logprobs for i, seq in special}
        wanted = {i: k for i, k in counts.items() if k is not None}
        if not wanted:
            return {}
        rows = np.array(list(wanted), dtype=np.int64)
        found = self.state.executor.logprobs(at[rows], tokens[rows], max(wanted.values()))
        logprobs = {}
        for (i, k), chosen, ids, values in zip(wanted.items(), *found, strict=True):
            top = tuple((int(token), float(value)) for token, value in zip(ids[:k], values[:k], strict=True))
            logprobs[i] = TokenLogprobs(float(chosen), top)
        return logprobs
