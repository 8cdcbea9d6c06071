"""How requests end: finished, cancelled, rejected or failed, each exactly once and without harm to others."""

from __future__ import annotations

from collections.abc import Callable

from framework.engine.executors.base import Executor
from framework.engine.metrics import Metrics
from framework.engine.request import Completion, Request, Sequence, Status
from framework.engine.rows import IntArray
from framework.engine.scheduler import Scheduler
from framework.errors import FrameworkError
from framework.types import RequestId


class Lifecycle:
    """The requests that have not ended, and the ways out."""

    def __init__(self, scheduler: Scheduler, executor: Executor, metrics: Metrics, eos_token_ids: IntArray) -> None:
        self.scheduler, self.executor, self.metrics = scheduler, executor, metrics
        self.eos_token_ids = eos_token_ids
        self.requests: dict[int, Request] = {}
        self.arrivals: list[tuple[float, int, Request]] = []
        self.on_end: Callable[[Request], object] | None = None
        """Called with each request as it ends, completions and status in place."""
        self._next_id = 0
        scheduler.fail = self.fail

    def take_id(self) -> RequestId:
        """A sequence id nobody had before."""
        self._next_id += 1
        return RequestId(self._next_id)

    def fail(self, seq: Sequence, error: FrameworkError) -> None:
        """End the request of `seq`, and no other, because of `error`."""
        self.drop(seq.request)
        self.end(seq.request, Status.FAILED, f"{type(error).__name__}: {error}")

    def drop(self, request: Request) -> None:
        """Take every sequence of a request out of rows and queues; keep what they generated so far."""
        for seq in request.sequences:
            if seq.row >= 0:
                self.scheduler.release(seq)
        ended = request.group.completions() if request.group is not None else []
        request.completions = ended + [
            self.completion(seq, self._reason_of(seq) if seq.done else "aborted")
            for seq in sorted(request.sequences, key=lambda seq: seq.stream)
            if seq.generated
        ]
        for seq in request.sequences:
            seq.done = True

    def end(self, request: Request, status: Status, reason: str = "") -> None:
        """Close the books on a request whose sequences hold nothing any more."""
        error = request.plugin_error
        if error is not None and status is not Status.FAILED:
            status, reason = Status.FAILED, f"{type(error).__name__}: {error}"
        request.status, request.reason = status, reason
        request.finished_s = self.executor.now()
        self.requests.pop(request.number, None)
        if request.group in self.scheduler.groups:
            self.scheduler.groups.remove(request.group)
        self.metrics.ended(request)
        if request.sequences:
            self.scheduler.log(status.value, request.sequences[0])
        if self.on_end is not None:
            self.on_end(request)

    def finish_row(self, seq: Sequence) -> None:
        """One sequence is complete; its request ends with the last of them."""
        if seq.row >= 0:
            try:
                self.scheduler.commit(seq, int(self.scheduler.rows.computed[seq.row]))
            except FrameworkError as error:
                self.fail(seq, error)
                return
            self.scheduler.release(seq)
        seq.done = True
        request = seq.request
        if all(other.done for other in request.sequences) and len(request.sequences) == request.sampling.n:
            sequences = sorted(request.sequences, key=lambda other: other.stream)
            request.completions = [self.completion(other, self._reason_of(other)) for other in sequences]
            self.end(request, Status.FINISHED)

    def _reason_of(self, seq: Sequence) -> str:
        return self.why_stop(seq.request, int(seq.tokens[-1]), len(seq.tokens))

    def completion(self, seq: Sequence, reason: str) -> Completion:
        """What a sequence without a row has generated."""
        wanted = seq.request.sampling.logprobs is not None
        scored = wanted or seq.request.group is not None
        return Completion(
            tokens=seq.generated,
            finish_reason=reason,
            cumulative_logprob=seq.cumulative_logprob if scored else None,
            logprobs=list(seq.logprobs) if wanted else None,
        )

    def why_stop(self, request: Request, token: int, length: int) -> str:
        """ "stop", "length", or "" while a sequence of `length` tokens that just got `token` goes on."""
        sampling = request.sampling
        if token in sampling.stop_token_ids or (not sampling.ignore_eos and token in self.eos_token_ids):
            return "stop"
        return "length" if length >= request.max_total_tokens else ""

    def mark_first_token(self, request: Request, now: float) -> None:
        """Note when the request's first token came, once."""
        if request.first_token_s is None:
            request.first_token_s = now
