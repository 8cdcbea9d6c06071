"""mode=replay: the same scheduler, allocators, policies and hash schemes on a trace, with the model taken out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from framework.config.config import Choice, Config
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.base import Executor
from framework.engine.executors.replay import ReplayExecutor, StepCosts, constant_step
from framework.engine.request import Request
from framework.engine.streaming import RecordedEnd
from framework.errors import ConfigError
from framework.guard.facts import Reporting, reported
from framework.guard.policy import GuardedPolicy
from framework.guard.workload import GuardedWorkload
from framework.interfaces.allocator import Allocator
from framework.interfaces.below import Below, ReplayedPool
from framework.interfaces.compression import CompressedPool, Compression
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.mode import OnBegin
from framework.interfaces.workload import Recording, Workload, WorkloadRequest
from framework.modes.replay_input import block_bytes, pool_blocks, what_fewer_bits_buy, workload_of
from framework.modes.session import KINDS, Session, names_of
from framework.registry.components import build_allocator, build_component
from framework.replay.items import Foresight, feed, trace_items, with_blocks
from framework.replay.roofline import Roofline
from framework.results.layout import REQUESTS
from framework.types import TokenArray
from framework.workload import requests_of

_DEFAULT_LEN = 262_144
_IN_STEPS = {"wall_s": "wall_steps", "time_s": "time_steps"}
_TIME = re.compile(r"_s(_p\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCache:
    """What keeps the blocks of a replay through the engine in place of one pool.

    Attributes:
        make: its allocator, empty, and a policy of it.
        results: of that allocator at the end and of what was counted, what the result says.
    """

    make: Callable[[], tuple[Allocator, EvictionPolicy]]
    results: Callable[[Allocator, dict[str, Any]], dict[str, Any]]


def replay(config: Config, on_begin: OnBegin = lambda path: None) -> dict[str, Any]:
    """Replay `config`'s trace; returns what `result.json` holds. See api.run."""
    with Session(config, on_begin=on_begin) as session:
        session.facts["executor"] = config.executor or "none"
        return full_replay(session)


def full_replay(session: Session, cache: OtherCache | None = None) -> dict[str, Any]:
    """Requests overlap, pin their blocks, decode and are preempted, as in a serve run.

    Args:
        cache: in place of the pool, policy and allocator of the configuration.
    """
    options = session.config.replay
    trial = session.trial()
    source = open_source(session.config, trial, cache)
    engine, unit = source.engine, source.unit
    below: Below = build_component("below", session.config.below.plain(), {})
    session.facts |= (
        names_of(session.config, (*KINDS[cache is not None : 3], "scheduling", "compression", "workload"))
        | below.names()
    )
    session.begin("none")
    session.say_length(session.config.engine.max_model_len, None, engine.max_model_len, engine.limits.length_advice)
    if session.settings.requests:
        engine.state.on_end = lambda request: session.run.log(
            REQUESTS, {**request_row(request, below, unit=unit), **session.observed(request.number)}
        )
    start = time.perf_counter()

    measured: dict[str, Any] = {}

    def work() -> None:
        # NOTE: an engine that knew the future could do it. Where requests come one at a time no order of evictions
        # hits more (shown against exhaustive search); where they overlap it is a reference, no bound.
        if options.optimum:  # first: what it cannot be made for is refused before the work is done
            belady = session.config.changed(eviction=Choice("belady"))
            measured["offline_next_use_hit_rate"] = _replay_again(belady)
        for _ in feed(engine, source.items, progress=session.settings.progress):
            session.log_step(engine, in_steps if unit == "steps" else dict)
        engine.check()
        num_blocks = engine.allocator.num_blocks
        measured.update(
            what_fewer_bits_buy(session.config, num_blocks, lambda blocks: replayed_hit_rate(session.config, blocks))
        )

    def outcome(complete: bool) -> dict[str, Any]:
        summary = engine.state.summary(complete=complete)
        summary["goodput_requests_per_s"] = engine.metrics.goodput(options.slo_ttft_s, options.slo_tpot_s)
        summary = in_steps(summary) if unit == "steps" else summary
        summary.pop("engine_overhead", None)  # measured by the wall
        if "returned_blocks" in summary:
            size = block_bytes(options, session.config.cache)
            summary["returned_bytes"] = summary["returned_blocks"] * size
        if cache is not None:
            summary = cache.results(engine.allocator, summary)
        if "offline_next_use_hit_rate" in measured:
            summary["gap_to_offline_next_use"] = _gap(summary["hit_rate"], measured["offline_next_use_hit_rate"])
        facts: dict[str, Any] = {}
        if complete:  # else one of these may be what failed
            of: dict[str, Reporting] = {"allocator": engine.state.guarded, "eviction": GuardedPolicy(source.policy)}
            facts = {**GuardedWorkload(source.workload).result(), **reported(of)}
        return {
            "num_skipped_lines": 0,
            **facts,
            **summary,
            **measured,
            "clock": source.clock,
            "loop": "open",
            "num_blocks": engine.allocator.num_blocks,
            "block_size": engine.allocator.block_size,
            "replay_s": time.perf_counter() - start,
        }

    return session.record(work, outcome)


def replayed_hit_rate(config: Config, num_blocks: int) -> float | None:
    """The hit rate of `config`'s replay over a pool of `num_blocks`, with K and V of the model's dtype."""
    cache = config.cache.changed(num_blocks=num_blocks, memory_fraction=None, kv_dtype=None)
    return _replay_again(config.changed(cache=cache, replay=config.replay.changed(capacity=None)))


def _replay_again(config: Config) -> float | None:
    """The hit rate of this replay, which logs nothing; None where no request fits."""
    source = open_source(config, Trial(seed=config.seed, faults=config.faults))
    for _ in feed(source.engine, source.items):
        pass
    hit_rate: float | None = source.engine.state.summary()["hit_rate"]
    return hit_rate


def _gap(hit_rate: float | None, of_reference: float | None) -> float | None:
    """How many times the reference's misses were missed beyond it; None where there are none, or no request."""
    if hit_rate is None or of_reference is None or of_reference == 1:
        return None
    return (of_reference - hit_rate) / (1 - of_reference)


def in_steps(measured: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on a clock that counts steps, without rates a second and without times but the whole one."""
    return {_IN_STEPS.get(key, key): v for key, v in measured.items() if key in _IN_STEPS or not _TIME.search(key)}


@dataclass(slots=True)
class Source:
    """What a replay replays, and the engine for it.

    Attributes:
        policy: the engine's allocator's.
        unit: of the engine's clock: "s", or "steps" where arrivals are step numbers.
        clock: as the result names it.
    """

    engine: Engine
    policy: EvictionPolicy
    items: Iterator[WorkloadRequest]
    unit: str
    clock: str
    workload: Workload


def open_source(config: Config, trial: Trial, cache: OtherCache | None = None) -> Source:
    """Read what comes first, and build the engine: that of a serve run, with a ReplayExecutor in place of the model.

    Raises:
        WorkloadError: a file that cannot be read, or without a request.
        ConfigError: a policy that needs the future, over a recording.
    """
    name, workload = workload_of(config)
    guarded = GuardedWorkload(workload)
    steps = guarded.in_steps()
    recording = guarded.recording() if steps else None
    if steps and config.executor == "roofline":
        raise ConfigError(
            "the trace has arrivals in steps of the engine that was recorded, and executor=roofline wants "
            "seconds; leave executor out"
        )
    outputs: dict[tuple[int, int], TokenArray] = {} if recording is None else dict(recording.outputs)
    executor = _executor(config, outputs, recording, steps=steps)
    engine, policy = _engine(config, executor, recording, trial, cache, steps=steps)
    unit, clock = ("steps", "steps") if steps else ("s", clock_of(config))
    if recording is not None:
        if policy.needs_future:
            raise ConfigError(
                f"eviction={config.eviction.name} needs every block's next use, which workload=trace "
                "gives and workload=recording does not; replay a trace, or choose another policy"
            )
        return Source(engine, policy, iter(recording.requests), unit, clock, workload)
    if policy.needs_future:
        future = with_blocks(requests_of(workload, name), engine.allocator.block_size)
        Foresight(engine.allocator, future, max_len=engine.max_model_len).attach(engine)
    next(requests_of(workload, name))  # what cannot be read is found before anything is written
    return Source(engine, policy, trace_items(requests_of(workload, name), outputs), unit, clock, workload)


def clock_of(config: Config) -> str:
    """What tells the seconds of a replay, as its result names it."""
    if config.executor == "roofline":
        return "virtual"
    return f"costs of {config.replay.costs}" if config.replay.costs else f"{config.replay.step_s} s a step"


def trace_engine(
    config: Config, trial: Trial, outputs: MutableMapping[tuple[int, int], TokenArray], below: Below | None = None
) -> tuple[Engine, EvictionPolicy]:
    """An engine that replays what is submitted to it, in seconds, and its allocator's policy: one of several, say.

    Args:
        outputs: what its requests generate, by their number in this engine; see ReplayExecutor.
        below: what lies below its pool; None: what the configuration says.
    """
    return _engine(config, _executor(config, outputs, None, steps=False), None, trial, None, below, steps=False)


def _engine(
    config: Config,
    executor: Executor,
    recording: Recording | None,
    trial: Trial,
    cache: OtherCache | None,
    below: Below | None = None,
    *,
    steps: bool,
) -> tuple[Engine, EvictionPolicy]:
    """The engine and its allocator's policy. `steps`: its clock counts them."""
    block_size, seed = config.cache.block_size, config.seed
    longest = recording.max_model_len if recording is not None else _DEFAULT_LEN
    max_len, pool = config.engine.max_model_len or longest, 0
    allocator: Allocator
    if cache is None:
        num_blocks = pool_blocks(config.cache, config.replay)
        pool = num_blocks * block_size
        max_len = min(max_len, pool)
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_model_len": max_len, "seed": seed}
        policy = build_component("eviction", config.eviction.plain(), sizes)
        allocator = build_allocator(config.allocator.plain(), policy, config.hash.plain(), **sizes)
    else:  # no length is too long: its allocator says what never fits
        allocator, policy = cache.make()
    to_raise = f"cache.num_blocks: the pool's {allocator.num_blocks} blocks hold {pool} tokens"
    below = below or build_component("below", config.below.plain(), {})
    compression: Compression = build_component("compression", config.compression.plain(), {"seed": seed})
    windowed = recording is not None and recording.window is not None
    compression.check(CompressedPool(allocator=allocator, below=below, windowed=windowed, mode=config.mode.name))
    recorded = recording.outputs if recording is not None else {}
    lengths = {sample: len(tokens) for sample, tokens in recorded.items()}
    engine = Engine(
        allocator,
        executor,
        limits=ModelLimits(
            max_model_len=max_len,
            length_advice=f"raise {to_raise if max_len == pool else 'engine.max_model_len'}",
            eos_token_ids=recording.eos_token_ids if recording else (),
            window=recording.window if recording else None,
        ),
        options=config.engine,
        virtual_clock=True,
        trial=trial,
        stop_watch=lambda number, stream, stops: RecordedEnd(lengths.get((number, stream))),
        scheduling=build_component("scheduling", config.scheduling.plain(), {"seed": seed}),
        compression=compression,
        tiers=below.replay(lambda: _pool(config, allocator, executor, max_len, timed=not steps)),
    )
    return engine, policy


def _pool(config: Config, allocator: Allocator, executor: Executor, max_len: int, *, timed: bool) -> ReplayedPool:
    """What something below the pool may know of it; where the clock counts steps (not `timed`), without times."""
    return ReplayedPool(
        allocator=allocator,
        hash=build_component("hash", config.hash.plain(), {"seed": config.seed}),
        shared={"block_size": config.cache.block_size, "max_model_len": max_len, "seed": config.seed},
        block_bytes=block_bytes(config.replay, config.cache),
        now=executor.now,
        wait_until=executor.wait_until,
        recompute_s=prefill_time(config) if timed else None,
    )


def prefill_time(config: Config) -> Callable[[int, int], float]:
    """(cached tokens, tokens) -> seconds to compute the others of a prompt that nothing else shares a step with."""
    options, most = config.replay, config.engine.max_batch_tokens
    if config.executor == "roofline":
        return _roofline(config, overhead_s=0.0).prefill_s
    if options.costs:
        return StepCosts.read(options.costs).prefill_s
    return lambda cached, tokens: options.step_s * -(-(tokens - cached) // most)


def _executor(
    config: Config, outputs: MutableMapping[tuple[int, int], TokenArray], recording: Recording | None, *, steps: bool
) -> Executor:
    """What stands in for the model. `outputs`: what requests generate, see ReplayExecutor."""
    if steps:
        tops = recording.tops if recording is not None else None
        return ReplayExecutor(constant_step(0.0), outputs=outputs, tops=tops, step_clock=True)
    if config.executor == "roofline":
        return ReplayExecutor(_roofline(config), outputs=outputs)
    options = config.replay
    step_time = StepCosts.read(options.costs) if options.costs else constant_step(options.step_s)
    return ReplayExecutor(step_time, outputs=outputs)


def _roofline(config: Config, **options: float) -> Roofline:
    return Roofline(
        device=config.replay.device,
        shape=config.replay.shape,
        kv_dtype=config.cache.kv_dtype,
        efficiency=config.replay.efficiency,
        num_devices=config.engine.tensor_parallel_size,
        **options,
    )


def request_row(request: Request, below: Below, *, unit: str = "s") -> dict[str, Any]:
    """What became of one request, its generated tokens left out.

    Args:
        below: what lies below the pool.
        unit: of the run's clock, which ends the names of the times: "s" or "steps".
    """
    return {
        "request": request.number,
        "key": request.key,
        "tenant": request.tenant,
        "priority": request.priority,
        "session": request.session,
        "status": request.status.value,
        "reason": request.reason,
        "prompt_tokens": len(request.prompt),
        "cached_tokens": request.num_cached_tokens,
        "output_tokens": sum(len(completion.tokens) for completion in request.completions),
        "recomputed_tokens": request.num_recomputed_tokens,
        "preemptions": request.num_preemptions,
        f"arrival_{unit}": request.arrival_s,
        f"first_token_{unit}": request.first_token_s,
        f"finished_{unit}": request.finished_s,
        **below.request_row(request, unit),
    }
