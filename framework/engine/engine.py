"""The step loop: schedule, allocate, execute, commit, sample, free."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

import numpy as np

from framework.config.sections import EngineOptions, FaultOptions
from framework.engine.executors.base import Executor, Step
from framework.engine.lifecycle import Lifecycle
from framework.engine.metrics import Metrics
from framework.engine.outputs import Outputs
from framework.engine.request import (
    About,
    BeamGroup,
    MakeStopWatch,
    Request,
    Sequence,
    Status,
    derived_seed,
    require_facts,
)
from framework.engine.rows import Rows
from framework.engine.scheduler import Scheduler
from framework.engine.state import EngineState, EventLog, Log
from framework.engine.waiting import OrderedQueue
from framework.errors import (
    EngineInterrupted,
    InvalidArgument,
    InvariantViolation,
    shown,
)
from framework.guard.allocator import GuardedAllocator
from framework.guard.observer import Observers
from framework.interfaces.allocator import Allocator
from framework.interfaces.below import MakeBelow
from framework.interfaces.compression import Compression
from framework.interfaces.observer import Note, Observed, Observer
from framework.interfaces.scheduling import Scheduling
from framework.interfaces.workload import Candidates
from framework.registry.culprit import raise_named
from framework.registry.signatures import check_arguments
from framework.sampling import Sampling
from framework.types import RequestId, as_tokens
from framework.validation import Natural, Options, Positive

_LOOK_S = 0.05
"""Who would read the state looks so often whether a step has begun, for which nobody waits."""


class Trial(Options):
    """One trial of an experiment: its seed, the faults injected into it, and who listens.

    Attributes:
        seed: requests without a seed of their own derive one from it and their number.
        faults: blocks of NaN (which an executor writes), preemptions.
        record: keep what a replay cannot compute again, in `Engine.candidates`.
        log: receives scheduling and cache events as (event, **facts), the log's version first.
        observers: hear what the engine does; see framework.interfaces.observer. The caller starts and closes them.
    """

    section: ClassVar[str] = "trial"

    seed: Natural = 0
    faults: FaultOptions = FaultOptions()
    record: bool = False
    log: Log | None = None
    observers: tuple[Observer, ...] = ()


class ModelLimits(Options):
    """What a model sets for the requests that are served on it.

    Attributes:
        max_model_len: longest sequence, tokens; longer requests are rejected.
        length_advice: what to do about a request that is too long: which limit `max_model_len` stems from.
        eos_token_ids: end a sequence unless its sampling ignores them.
        vocab_size: prompts with larger ids are rejected; None accepts all.
        window: tokens that a token reads in any layer, itself included, where every layer of the model has a sliding
            window: blocks behind it are unreferenced while their request runs. None: all are read to the end.
    """

    section: ClassVar[str] = "limits"

    max_model_len: Positive
    length_advice: str = "raise engine.max_model_len"
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: Positive | None = None
    window: Positive | None = None


class Engine:
    """Serves requests over one allocator and one executor. Knows no class of either by name.

    NOTE: whatever ends a step or a submission early, a KeyboardInterrupt above all, leaves rows, tables and blocks half
    changed. So each begins by marking the engine as torn and ends by unmarking it; a torn engine refuses to go on until
    `reset` has replaced its whole state. It is not rolled back: that code would run least and be wrong most.

    Args:
        options: how to batch. The longest sequence is that of `limits`.
        virtual_clock: the executor's clock is virtual, the same in every run: it is what policies see. Else they see
            the number of the step, so that what they do can be repeated.
        stop_watch: makes what watches a sequence for stop texts; without it, requests that have some are rejected.
        scheduling: which waiting request is next; None: first come, first served within a priority.
        compression: which tokens of a request stay in the pool; None: all.
        tiers: makes what lies below the pool, now and after each reset; None for nothing.
        trial: the seed, faults and who listens.

    Attributes:
        state: what the engine holds; another object after each `reset`.
        candidates: of each step of a beam search, by request number; kept by a `reset`. None: nothing is recorded.
    """

    def __init__(
        self,
        allocator: Allocator,
        executor: Executor,
        *,
        limits: ModelLimits,
        options: EngineOptions | None = None,
        virtual_clock: bool = False,
        stop_watch: MakeStopWatch | None = None,
        scheduling: Scheduling | None = None,
        compression: Compression | None = None,
        tiers: MakeBelow | None = None,
        trial: Trial | None = None,
    ) -> None:
        check_arguments(Engine, locals())
        options, trial = options or EngineOptions(), trial or Trial()
        if options.max_batch_tokens < options.max_batch_requests:
            raise InvalidArgument(
                f"engine.max_batch_tokens ({options.max_batch_tokens}) must be at least engine.max_batch_requests "
                f"({options.max_batch_requests}): every row decodes one token a step"
            )
        self.executor, self._virtual_clock = executor, virtual_clock
        self.limits, self.max_model_len, self._options = limits, limits.max_model_len, options
        self.seed, self.preempt_every = trial.seed, trial.faults.preempt_every
        self._stop_watch, self._make_tiers = stop_watch, tiers
        self._scheduling = None if type(scheduling) is Scheduling else scheduling
        self._compression = compression or Compression()
        self.candidates: dict[int, list[Candidates]] | None = {} if trial.record else None
        self._num_submitted = 0
        self._torn = self._changing = False
        self._still = threading.RLock()  # held by what changes the state, and by who reads it whole
        logs = () if trial.log is None else (EventLog(trial.log, lambda: self.state.step_number),)
        self._observers = Observers((*logs, *trial.observers))
        self._begin_anew(allocator)

    def _begin_anew(self, allocator: Allocator) -> None:
        """An empty state over `allocator`, and all that works on it."""
        options, eos = self._options, np.array(sorted(set(self.limits.eos_token_ids)), dtype=np.int64)
        chunk_size = options.chunk_size or options.max_batch_tokens
        longest = -(-self.max_model_len // allocator.block_size)
        guarded, observers = GuardedAllocator(allocator, longest), self._observers
        rows = Rows(options.max_batch_requests, self.max_model_len)
        metrics = Metrics(guarded, rows)
        state = EngineState(
            guarded=guarded, executor=self.executor, rows=rows, metrics=metrics,
            observers=observers if observers.follows_calls else None,
        )  # fmt: skip
        life = Lifecycle(state, eos, self._stop_watch)
        observers.begin(Observed(
            num_blocks=guarded.num_blocks, block_size=guarded.block_size, groups=guarded.groups, lookup=guarded.lookup,
            lies_below=None if self._make_tiers is None else lambda key: state.tiers.lies_below(key),
        ))  # fmt: skip
        if self._make_tiers is not None:
            state.tiers = self._make_tiers(state, life)
        if self._scheduling is not None:
            state.waiting = state.ordered = OrderedQueue(self._scheduling, state)
        state.compressor = self._compression.compressor(state, life)
        observers.listeners = state.listeners
        if observers:
            guarded.observe(observers)
        self.allocator, self.state, self.life, self.metrics = allocator, state, life, state.metrics
        self.scheduler = Scheduler(state, life, max_batch_tokens=options.max_batch_tokens, chunk_size=chunk_size)
        self._outputs = Outputs(state, life, self.candidates)

    # Interruption

    @property
    def interrupted(self) -> bool:
        """Whether a step or a submission was ended early, so that only `reset` helps."""
        return self._torn and not self._changing

    def _change(self, work: Callable[..., None], *arguments: Any) -> None:
        """Change the state by `work`: left by an exception of any kind, the engine is torn.

        Raises:
            EngineInterrupted: it is, or a change is under way.
            Exception: what a plugin raised, with a note that names it.
        """
        self._require_whole()
        with self._still:
            self._require_whole()
            try:
                self._torn = self._changing = True
                work(*arguments)
                self._torn = False
            except BaseException as error:
                raise_named(error)
            finally:
                self._changing = False

    def _require_whole(self) -> None:
        self._require_no_step()
        if self._torn:
            raise EngineInterrupted(
                "a step of this engine was interrupted: its blocks and tables cannot be trusted until it is reset"
            )

    def _require_no_step(self) -> None:
        if self._torn and self._changing:
            raise EngineInterrupted("this engine is in a step: it was called from within it, or by another thread")

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """A block in which no other thread begins a step, so that what is read in it belongs together.

        Raises:
            EngineInterrupted: a step is under way.
        """
        still = self._still
        while not still.acquire(timeout=_LOOK_S):
            self._require_no_step()
        try:
            self._require_no_step()
            yield
        finally:
            still.release()

    def reset(self, allocator: Allocator) -> None:
        """Fail all requests that have not ended, and begin anew with an empty cache; counts start at 0 again.

        Args:
            allocator: a new one of the same sizes: what the last one holds may be half changed.

        Raises:
            RankError: the other ranks of the model were ended by what interrupted this one.
        """
        self._torn, self._still = True, threading.RLock()  # a step that never returns holds the other one
        old, numbered = list(self.state.requests.values()), (self.state.last_id, self.state.step_number)
        self.state.tiers.close(drain=False)
        self.executor.reset()
        self._begin_anew(allocator)
        self.state.last_id, self.state.step_number = numbered
        for request in old:
            request.status, request.reason = Status.FAILED, "the engine was reset"
        self._torn = False

    # Requests

    def submit(
        self,
        prompt: Any,
        sampling: Sampling,
        *,
        arrival_s: float | None = None,
        **about: Unpack[About],
    ) -> Request:
        """Queue one prompt (token ids). A request that can never be served comes back rejected, with the reason.

        Raises:
            InvalidTokens, InvalidArgument: no token ids, a word that is not one of `About`'s, or a priority, an arrival
                or a name outside its range. Nothing was queued.
            EngineInterrupted: the engine must be reset first.
        """
        if unknown := about.keys() - About.__optional_keys__:
            known = ", ".join(sorted(About.__optional_keys__))
            raise InvalidArgument(
                f"a request is not described by {', '.join(map(repr, sorted(unknown)))}; its words are {known}"
            )
        request = Request(
            number=self._num_submitted,
            prompt=as_tokens(prompt),
            sampling=sampling,
            arrival_s=self.executor.now() if arrival_s is None else arrival_s,
            **about,
        )
        require_facts(request)
        self._change(self._queue, request)
        return request

    def _queue(self, request: Request) -> None:
        state, seed = self.state, request.sampling.seed
        self._num_submitted += 1
        request.seed = derived_seed(self.seed, request.number) if seed is None else seed
        request.arrival_s = float(request.arrival_s)
        state.metrics.submitted(request)
        seq = Sequence(RequestId(0), request, stream=0, tokens=request.prompt)
        seq.forks_due = request.width - 1
        request.sequences.append(seq)
        if reason := self._why_never(request):
            seq.done = True
            self.life.end(request, Status.REJECTED, reason)
            return
        if request.sampling.beam_width > 1:
            request.group = BeamGroup(request.sampling, [seq])
        state.requests[request.number] = request
        heapq.heappush(state.arrivals, (request.arrival_s, request.number, request))

    def _why_never(self, request: Request) -> str:
        """Why `request` can never be served, with the numbers; empty if it can."""
        total, rows, prompt = request.max_total_tokens, self.state.rows.max_rows, request.prompt
        if len(prompt) == 0:
            return "the prompt is empty; give it at least one token"
        vocab_size = self.limits.vocab_size
        if vocab_size is not None and int(prompt.max()) >= vocab_size:
            return f"token id {int(prompt.max())} is outside the model's vocabulary of {vocab_size}"
        if request.sampling.stop and self._stop_watch is None:
            return "stop texts need a tokenizer, and there is none; use stop_token_ids"
        if total > self.max_model_len:
            return (
                f"{len(prompt)} prompt + {request.sampling.max_tokens} new tokens = {total} pass the longest sequence "
                f"of {self.max_model_len} tokens; shorten it or {self.limits.length_advice}"
            )
        if request.width > rows:
            return f"{request.width} samples or beams need as many rows; engine.max_batch_requests is {rows}"
        guarded = self.state.guarded
        if request.sequences[0].info.max_total_tokens > guarded.max_request_tokens:
            return (
                f"{total} tokens can never fit a pool of {guarded.num_blocks} blocks of {guarded.block_size} tokens; "
                "raise cache.num_blocks"
            )
        return ""

    def cancel(self, request: Request, reason: str = "cancelled by the caller") -> None:
        """End a request now and free its blocks. What it generated so far is kept. Idempotent.

        Raises:
            InvalidArgument: no request, or another engine's.
            EngineInterrupted: the engine must be reset first, which ends all requests.
        """
        if not isinstance(request, Request):
            raise InvalidArgument(f"cancel takes a request that was submitted, found {shown(request)}")
        if not request.status.ended:
            if self.state.requests.get(request.number) is not request:
                raise InvalidArgument(
                    f"request {request.number} was not submitted to this engine; cancel it where it was"
                )
            self._change(self.life.stop, request, Status.CANCELLED, reason)

    @property
    def num_unfinished(self) -> int:
        """Requests not ended yet."""
        return len(self.state.requests)

    # Steps

    def run(self, on_step: Callable[[Engine], Any] | None = None) -> None:
        """Step until every request has ended."""
        while self.state.requests:
            self.step()
            if on_step is not None:
                on_step(self)

    def step(self) -> None:
        """Compute at least one token, or end or await at least one request.

        Raises:
            EngineInterrupted: an earlier step was interrupted, or another thread is in one.
            Exception: what a plugin raised, with a note that names it. The engine has to be reset then.
        """
        self._change(self._step)
        if self.state.observers is not None:
            self._change(self._observers.noted, Note("computed", self.state.step_number))

    def _step(self) -> None:
        state, executor = self.state, self.executor
        start = executor.now()
        self._let_in(state, start)
        state.step_number += 1
        executor.begin_step(state.step_number)
        state.now = executor.now() if self._virtual_clock else float(state.step_number)
        state.guarded.advance(state.now)
        if self.preempt_every and state.step_number % self.preempt_every == 0:
            self._inject_preemption()
        before = len(state.requests), state.metrics.num_preemptions
        step = self.scheduler.schedule()
        if step is None:
            # Where a request ended or was preempted just now, the next step finds room; nobody is stuck yet.
            if before == (len(state.requests), state.metrics.num_preemptions):
                self._idle(state)
            return
        if state.observers is not None:
            ids = [state.rows.sequence(int(row)).id for row in step.rows]
            facts = {"sequences": ids, "new": step.num_new.tolist()}
            state.observers.noted(Note("step", step.number, facts=facts))
        scheduled = executor.now()
        state.tiers.flush()
        if state.compressor is not None:
            state.compressor.begin(step.rows, step.num_new)
        executor.forward(step, state.rows)
        if self.state is not state:
            raise EngineInterrupted("the engine was reset while this step ran: what it computed is thrown away")
        computed = executor.now()
        self._commit(step)
        if state.compressor is not None:
            state.compressor.end()
        state.metrics.occupancy(step)
        self._outputs.sample(step)
        state.metrics.stepped(step, start, scheduled, computed, executor.now())

    def _let_in(self, state: EngineState, now: float) -> None:
        """Move the requests that are due at `now` to the waiting queue; policies see `Request.arrival` from here on."""
        arrivals = state.arrivals
        while arrivals and (arrivals[0][0] <= now or arrivals[0][2].status.ended):
            request: Request = heapq.heappop(arrivals)[2]
            if request.status.ended:
                continue
            request.arrival_step = state.step_number
            request.arrival = request.arrival_s if self._virtual_clock else float(request.arrival_step)
            # Numbered on arrival, so that a trace fed as it goes and one queued at once count alike.
            request.sequences[0].id = state.take_id()
            if request.group is not None:
                state.groups.append(request.group)
            state.waiting.push(request.sequences[0])
            state.note("arrive", request.sequences[0])

    def _idle(self, state: EngineState) -> None:
        """Nothing to compute: wait for the next arrival, or end what can never go on."""
        stuck = state.waiting.peek()
        active = state.rows.active()
        next_s = state.arrivals[0][0] if state.arrivals else None
        if state.tiers.busy:
            state.tiers.wait(next_s)
            return
        if state.tiers.give_up():  # it held blocks until all its samples have rows; others wait for those blocks
            return
        if stuck is None and not len(active):
            if next_s is not None:
                state.executor.wait_until(next_s)
            return
        last = state.rows.sequence(int(active[-1])) if len(active) else None
        if last is not None and stuck is not None and stuck.request is not last.request:
            self.life.preempt(last)
            return
        seq = stuck if stuck is not None else last
        assert seq is not None
        stats = state.guarded.stats()
        why = (
            f"needs room for {len(seq.tokens)} tokens, has {stats.free_blocks} free + {stats.cached_blocks} "
            f"evictable of {stats.num_blocks} blocks and nothing else runs; raise cache.num_blocks"
        )
        self.life.stop(seq.request, Status.FAILED, why)

    def _inject_preemption(self) -> None:
        """Preempt the newest row, unless its request is the only one running: that would never end."""
        rows = self.state.rows
        running = [rows.sequence(int(row)) for row in rows.active()]
        if running and running[0].request is not running[-1].request:
            self.life.preempt(running[-1])

    def _commit(self, step: Step) -> None:
        """Publish the blocks this step filled: Python is touched once a block, not once a token."""
        rows, size = self.state.rows, self.state.guarded.block_size
        now_computed = step.computed + step.num_new
        rows.computed[step.rows] = now_computed
        filled = now_computed // size > step.computed // size
        for row, count in zip(step.rows[filled].tolist(), now_computed[filled].tolist(), strict=True):
            self.life.commit(rows.sequence(row), count)
        if self.limits.window is not None:
            self.life.unref_passed(step, self.limits.window)

    def check(self) -> None:
        """The allocator's invariants, and that nothing is held for requests that ended.

        Raises:
            EngineInterrupted: a step is under way, in this thread or another.
            InvariantViolation: lists what is broken.
        """
        with self.between_steps():
            self._check()

    def _check(self) -> None:
        self.state.tiers.check(settle=not self.state.requests)
        self.state.guarded.check()
        stats = self.state.guarded.stats()
        if not self.state.requests and (stats.used_blocks or stats.num_requests or self.state.rows.num_active):
            raise InvariantViolation(
                f"{type(self.allocator).__name__}: I45: every request has ended, yet {stats.used_blocks} blocks, "
                f"{stats.num_requests} tables and {self.state.rows.num_active} rows are in use"
            )
