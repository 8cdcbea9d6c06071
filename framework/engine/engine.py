"""The step loop: schedule, allocate, execute, commit, sample, free."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from framework.engine.beam import BeamGroup
from framework.engine.executors.base import Executor, Step
from framework.engine.lifecycle import Lifecycle
from framework.engine.metrics import Metrics
from framework.engine.outputs import Outputs
from framework.engine.request import Request, Sequence, Status, derived_seed
from framework.engine.scheduler import Log, Scheduler
from framework.errors import FrameworkError, InvalidArgument, InvariantViolation, PluginError, Unsupported
from framework.interfaces.allocator import Allocator
from framework.sampling import Sampling
from framework.types import ROOT_NAMESPACE, Hint, Namespace, RequestId, as_tokens


class Engine:
    """Serves requests over one allocator and one executor. Knows no class of either by name.

    Args:
        max_model_len: longest sequence, tokens; longer requests are rejected.
        eos_token_ids: end a sequence unless its sampling ignores them.
        seed: of the run; requests without a seed of their own derive one from it and their number.
        share_within_step: requests admitted in one step share the blocks that one of them computes in it.
        preempt_every: fault injection: preempt the newest row every so many steps; 0 never.
        virtual_clock: the executor's clock is virtual, the same in every run: policies see arrivals in its seconds.
            Else they see the step a request arrived at, so that what they do can be repeated.
        log: receives scheduling and cache events as (event, **facts); None for none.
        vocab_size: prompts with larger ids are rejected; None accepts all.
    """

    def __init__(
        self,
        allocator: Allocator,
        executor: Executor,
        *,
        max_model_len: int,
        max_batch_tokens: int = 2048,
        max_batch_requests: int = 64,
        chunk_size: int | None = None,
        share_within_step: bool = False,
        eos_token_ids: Iterable[int] = (),
        seed: int = 0,
        preempt_every: int = 0,
        vocab_size: int | None = None,
        virtual_clock: bool = False,
        log: Log | None = None,
    ) -> None:
        self.allocator, self.executor, self._virtual_clock = allocator, executor, virtual_clock
        self.scheduler = Scheduler(
            allocator,
            executor,
            max_batch_tokens=max_batch_tokens,
            max_batch_requests=max_batch_requests,
            chunk_size=chunk_size,
            max_model_len=max_model_len,
            share_within_step=share_within_step,
            log=log,
        )
        self.max_model_len, self.seed, self.preempt_every = max_model_len, seed, preempt_every
        self.vocab_size, self._log = vocab_size, log
        if log is not None:
            self.scheduler.guarded.listen(
                lambda e: log(e.kind, step=int(e.now), block=int(e.block), key=bytes(e.key).hex())
            )
        self.metrics = Metrics(self.scheduler.guarded.num_blocks, self.scheduler.guarded.block_size)
        eos = np.array(sorted(set(eos_token_ids)), dtype=np.int64)
        self.life = Lifecycle(self.scheduler, executor, self.metrics, eos)
        self._outputs = Outputs(self.life)
        self._num_submitted = 0

    def replace_executor(self, executor: Executor) -> None:
        """Let `executor`, such as one that records, do the work from here on. Only while nothing runs."""
        self.executor = self.scheduler.executor = self.life.executor = executor
        self._outputs = Outputs(self.life)

    # Requests

    def submit(
        self,
        prompt: Any,
        sampling: Sampling,
        *,
        arrival_s: float | None = None,
        namespace: Namespace = ROOT_NAMESPACE,
        priority: int = 0,
        tenant: str = "",
        key: str = "",
        session: str | None = None,
        category: str | None = None,
        hint: Hint | None = None,
        turn: int | None = None,
    ) -> Request:
        """Queue one prompt (token ids). A request that can never be served comes back rejected, with the reason."""
        number = self._num_submitted
        self._num_submitted += 1
        request = Request(
            number=number,
            prompt=as_tokens(prompt),
            sampling=sampling,
            arrival_s=self.executor.now() if arrival_s is None else arrival_s,
            namespace=namespace,
            priority=priority,
            tenant=tenant,
            key=key,
            session=session,
            category=category,
            hint=hint,
            turn=turn,
            seed=derived_seed(self.seed, number) if sampling.seed is None else sampling.seed,
        )
        self.metrics.submitted(request)
        seq = Sequence(RequestId(0), request, stream=0, tokens=request.prompt)
        seq.forks_due = request.width - 1
        request.sequences.append(seq)
        try:
            reason = self._why_never(request)
        except FrameworkError as error:
            self.life.fail(seq, error)
            return request
        if reason:
            seq.done = True
            self.life.end(request, Status.REJECTED, reason)
            return request
        if sampling.beam_width > 1:
            request.group = BeamGroup(sampling, [seq])
        self.life.requests[number] = request
        heapq.heappush(self.life.arrivals, (request.arrival_s, number, request))
        return request

    def _why_never(self, request: Request) -> str:
        total, rows = request.max_total_tokens, self.scheduler.rows.max_rows
        if len(request.prompt) == 0:
            return "the prompt is empty; give it at least one token"
        if self.vocab_size is not None and int(request.prompt.max()) >= self.vocab_size:
            return f"token id {int(request.prompt.max())} is outside the model's vocabulary of {self.vocab_size}"
        if total > self.max_model_len:
            return (
                f"{len(request.prompt)} prompt + {request.sampling.max_tokens} new tokens = {total} pass the longest "
                f"sequence of {self.max_model_len} tokens; shorten it or raise engine.max_model_len"
            )
        if request.width > rows:
            return f"{request.width} samples or beams need as many rows; engine.max_batch_requests is {rows}"
        if not self.scheduler.guarded.ever_fits(request.sequences[0].info):
            return (
                f"{total} tokens can never fit a pool of {self.allocator.num_blocks} blocks of "
                f"{self.allocator.block_size} tokens; raise cache.num_blocks"
            )
        return ""

    def cancel(self, request: Request, reason: str = "cancelled by the caller") -> None:
        """End a request now and give back its blocks. What it generated so far is kept. Idempotent."""
        if not request.status.ended:
            self.life.drop(request)
            self.life.end(request, Status.CANCELLED, reason)

    @property
    def num_unfinished(self) -> int:
        """Requests not ended yet."""
        return len(self.life.requests)

    # Steps

    def run(self, on_step: Callable[[Engine], Any] | None = None) -> None:
        """Step until every request has ended."""
        while self.life.requests:
            self.step()
            if on_step is not None:
                on_step(self)

    def step(self) -> None:
        """Compute at least one token, or end or await at least one request."""
        scheduler, executor = self.scheduler, self.executor
        start = executor.now()
        self._let_in(start)
        scheduler.step_number += 1
        executor.begin_step(scheduler.step_number)
        try:
            scheduler.guarded.advance(float(scheduler.step_number))
        except FrameworkError as error:
            self._fail_one(error)
        if self.preempt_every and scheduler.step_number % self.preempt_every == 0:
            self._inject_preemption()
        before = len(self.life.requests), scheduler.num_preemptions
        step = scheduler.schedule()
        if step is None:
            # Where a request failed or was preempted just now, the next step finds room; nobody is stuck yet.
            if before == (len(self.life.requests), scheduler.num_preemptions):
                self._idle()
            return
        self._log_step(step)
        scheduled = executor.now()
        try:
            executor.forward(step, scheduler.rows)
        except (PluginError, Unsupported, InvalidArgument) as error:
            self._fail_rows(step, error)
            return
        computed = executor.now()
        self._commit(step)
        try:
            self.metrics.occupancy(step, scheduler, self.allocator)
        except FrameworkError as error:
            self._fail_one(error)
        self._outputs.sample(step)
        self.metrics.stepped(step, start, scheduled, computed, executor.now())

    def _fail_one(self, error: FrameworkError) -> None:
        """End the most important request for an error that is no single request's: the others may do without."""
        active = self.scheduler.rows.active()
        seq = self.scheduler.rows.sequence(int(active[0])) if len(active) else self.scheduler.waiting.peek()
        if seq is not None:
            self.life.fail(seq, error)

    def _fail_rows(self, step: Step, error: FrameworkError) -> None:
        """End the requests of a step that the backend failed: their K and V may be half written."""
        for row in step.rows.tolist():
            seq = self.scheduler.rows.sequences[row]
            if seq is not None:
                self.life.fail(seq, error)

    def _log_step(self, step: Step) -> None:
        if self._log is not None:
            ids = [self.scheduler.rows.sequence(int(row)).id for row in step.rows]
            self._log("step", step=step.number, sequences=ids, new=step.num_new.tolist())

    def _let_in(self, now: float) -> None:
        arrivals = self.life.arrivals
        while arrivals and (arrivals[0][0] <= now or arrivals[0][2].status.ended):
            request = heapq.heappop(arrivals)[2]
            if request.status.ended:
                continue
            request.arrival_step = self.scheduler.step_number
            request.arrival = request.arrival_s if self._virtual_clock else float(request.arrival_step)
            # Numbered on arrival, so that a trace fed as it goes and one queued at once count alike.
            request.sequences[0].id = self.life.take_id()
            if request.group is not None:
                self.scheduler.groups.append(request.group)
            self.scheduler.waiting.push(request.sequences[0])
            self.scheduler.log("arrive", request.sequences[0])

    def _idle(self) -> None:
        """Nothing to compute: wait for the next arrival, or end what can never go on."""
        stuck = self.scheduler.waiting.peek()
        active = self.scheduler.rows.active()
        if stuck is None and not len(active):
            if self.life.arrivals:
                self.executor.wait_until(self.life.arrivals[0][0])
            return
        last = self.scheduler.rows.sequence(int(active[-1])) if len(active) else None
        if last is not None and stuck is not None and stuck.request is not last.request:
            self.scheduler.preempt(last)
            return
        seq = stuck if stuck is not None else last
        if seq is not None:
            try:
                stats = self.scheduler.guarded.stats()
            except FrameworkError as error:
                self.life.fail(seq, error)
                return
            self.life.drop(seq.request)
            self.life.end(
                seq.request,
                Status.FAILED,
                f"needs room for {len(seq.tokens)} tokens, has {stats.free_blocks} free + {stats.cached_blocks} "
                f"evictable of {stats.num_blocks} blocks and nothing else runs; raise cache.num_blocks",
            )

    def _inject_preemption(self) -> None:
        """Preempt the newest row, unless its request is the only one running: that would never end."""
        rows = self.scheduler.rows
        running = [rows.sequence(int(row)) for row in rows.active()]
        if running and running[0].request is not running[-1].request:
            self.scheduler.preempt(running[-1])

    def _commit(self, step: Step) -> None:
        """Publish the blocks this step filled: Python is touched once a block, not once a token."""
        rows, size = self.scheduler.rows, self.allocator.block_size
        now_computed = step.computed + step.num_new
        rows.computed[step.rows] = now_computed
        filled = now_computed // size > step.computed // size
        for row, count in zip(step.rows[filled].tolist(), now_computed[filled].tolist(), strict=True):
            seq = rows.sequences[row]
            if seq is None:
                continue
            try:
                self.scheduler.commit(seq, count)
            except FrameworkError as error:
                self.life.fail(seq, error)
        if self.scheduler.promises is not None:
            self.scheduler.promises.keep()

    def check(self) -> None:
        """The allocator's invariants, and that nothing is held for requests that ended.

        Raises:
            InvariantViolation: lists what is broken.
        """
        self.scheduler.guarded.check()
        stats = self.scheduler.guarded.stats()
        if not self.life.requests and (stats.used_blocks or stats.num_requests or self.scheduler.rows.num_active):
            raise InvariantViolation(
                f"{type(self.allocator).__name__}: every request has ended, yet {stats.used_blocks} blocks, "
                f"{stats.num_requests} tables and "
                f"{self.scheduler.rows.num_active} rows are in use"
            )
