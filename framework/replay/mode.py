"""mode=replay: the same scheduler, allocators, policies and hash schemes on a trace, with the model taken out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from framework import tracking
from framework.build import section
from framework.components import EngineOptions, build_allocator, build_component
from framework.engine.engine import Engine
from framework.engine.executor import Executor
from framework.errors import ConfigError
from framework.interfaces.eviction import EvictionPolicy
from framework.labels import label, provenance
from framework.options import call_checked
from framework.replay.cores import count
from framework.replay.curves import capacity_blocks
from framework.replay.executors import OUTPUT_BASE, ReplayExecutor, constant_step
from framework.replay.foresight import Foresight
from framework.replay.optimum import replay_optimum
from framework.replay.options import ReplayOptions
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.recording import Recording, read_recording
from framework.replay.reference import CacheOnlyResult
from framework.replay.roofline import Roofline
from framework.sampling import Sampling
from framework.tracking import RunDirectory, Trackers
from framework.types import Namespace, TokenArray
from framework.workload.traces import Trace, TraceRequest, open_trace

_KINDS = ("allocator", "eviction", "hash", "backend")
_DEFAULT_LEN = 262_144


@dataclass(frozen=True, slots=True)
class _Item:
    """One request on its way into the engine."""

    prompt: TokenArray
    sampling: Sampling
    arrival_s: float
    namespace: Namespace
    tenant: str = ""
    priority: int = 0


def replay(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replay `config`'s trace; returns what `result.json` holds. See build.run."""
    settings = section(config, "run")
    options = call_checked("replay", ReplayOptions, section(config, "replay"))
    with RunDirectory(Path(settings["dir"]), overwrite=bool(settings.get("overwrite", True))) as run:
        tracker = section(config, "tracker")
        trackers = Trackers(run, tracking.build(tracker.pop("name", "none"), tracker))
        trackers.start(config, label(config))
        run.write_provenance(provenance(config, "none"))
        executor = config.get("executor") or "none"
        start = time.perf_counter()
        if executor == "cache_only":
            result = cache_only(config, options)
        elif executor in ("none", "roofline"):
            result = full_replay(config, options, run, trackers)
        else:
            raise ConfigError(f"mode=replay has executors none, roofline and cache_only, found {executor!r}")
        result = {**_head(config, executor), **result, "replay_s": time.perf_counter() - start}
        trackers.finish(result)
    return result


def _head(config: Mapping[str, Any], executor: str) -> dict[str, Any]:
    cache = section(config, "cache")
    head: dict[str, Any] = {"status": "ok", "mode": "replay", "executor": executor}
    kinds = ("eviction",) if executor == "cache_only" else _KINDS[:3]
    head.update({kind: (config.get(kind) or {}).get("name") for kind in (*kinds, "workload")})
    head.update(seed=int(config.get("seed", 0)), num_blocks=cache.get("num_blocks"), block_size=cache.get("block_size"))
    return head


# One atomic access a request


def cache_only(config: Mapping[str, Any], options: ReplayOptions) -> dict[str, Any]:
    """Each request is one access: the mode of published hit-rate tables. See replay.reference."""
    cache = section(config, "cache")
    block_size = int(cache.get("block_size", 16))
    trace, limit, _ = _trace(config, block_tokens=block_size)
    if trace.block_tokens == 0:
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared; use executor=none")
    if trace.block_tokens != block_size:
        raise ConfigError(
            f"executor=cache_only counts whole trace blocks of {trace.block_tokens} tokens; set "
            f"cache.block_size={trace.block_tokens} or a multiple, or use executor=none"
        )
    paths = build_paths(_first(trace, limit), full_blocks_only=options.full_blocks_only)
    num_blocks = _num_blocks(cache, options, working_set=paths.num_nodes)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": int(config.get("seed", 0))}
    policy: EvictionPolicy = build_component("eviction", config.get("eviction") or "lru", shared)
    start = time.perf_counter()
    core, counts = count(config.get("allocator"), paths, policy, num_blocks, leaf_first=options.leaf_first)
    count_s = time.perf_counter() - start
    return {
        "num_requests": counts.num_requests,
        "hit_blocks": counts.hit_blocks,
        "prompt_blocks": counts.prompt_blocks,
        "hit_tokens": counts.hit_tokens,
        "prompt_tokens": counts.prompt_tokens,
        "admitted_blocks": counts.admitted,
        "evictions": counts.evictions,
        "hit_rate": counts.hit_rate,
        "hit_rate_blocks": counts.block_hit_rate,
        "num_blocks": num_blocks,
        "unique_blocks": paths.num_nodes,
        "infinite_hit_blocks": int(paths.infinite_hits.sum()),
        "block_references": paths.num_references,
        "num_skipped_lines": trace.num_skipped,
        "replay_core": core,
        "count_s": count_s,
        **(_gap(paths, counts, num_blocks) if options.optimum else {}),
    }


def _gap(paths: RequestPaths, counts: CacheOnlyResult, num_blocks: int) -> dict[str, Any]:
    """How many times the optimum's misses were missed beyond the optimum: 0 is optimal, 1 is twice as many."""
    best = replay_optimum(paths, num_blocks)
    least = best.prompt_blocks - best.hit_blocks
    return {
        "optimum_hit_blocks": best.hit_blocks,
        "gap_to_optimum": (best.hit_blocks - counts.hit_blocks) / least if least else None,
        "optimum_rules": "exact: one atomic access a request, only prompts cached, content may be declined",
    }


def _num_blocks(cache: Mapping[str, Any], options: ReplayOptions, working_set: int | None = None) -> int:
    if options.capacity is None:
        if cache.get("num_blocks") is None:
            raise ConfigError("mode=replay needs cache.num_blocks or replay.capacity: there is no device to ask")
        return int(cache["num_blocks"])
    if working_set is None and "%" in options.capacity:
        raise ConfigError("replay.capacity as a share of the trace is for executor=cache_only; give bytes")
    token = Roofline(shape=options.shape, dtype=options.dtype).kv_bytes_per_token
    size = token * int(cache.get("block_size", 16))
    return capacity_blocks(options.capacity, working_set=working_set or 0, bytes_per_block=size)


# The whole engine


def full_replay(
    config: Mapping[str, Any], options: ReplayOptions, run: RunDirectory, trackers: Trackers
) -> dict[str, Any]:
    """Requests overlap, pin their blocks, decode and are preempted, as in a serve run."""
    settings = section(config, "run")
    log = (lambda event, **facts: run.log_event({"event": event, **facts})) if settings.get("events") else None
    workload = section(config, "workload")
    recording: Recording | None = None
    trace: Trace | None = None
    if workload.get("name") == "recording":
        recording = read_recording(Path(str(workload.get("path"))))
        engine, _ = build_engine(config, options, log, recording)
        items = _recorded_items(recording)
    else:
        trace, limit, speed = _trace(config, block_tokens=None)
        outputs: dict[tuple[int, int], TokenArray] = {}
        engine, policy = build_engine(config, options, log, None, outputs)
        if policy.needs_future:
            Foresight(engine.allocator, _first(trace, limit), max_len=engine.max_model_len).attach(engine.scheduler)
        items = trace_items(_first(trace, limit), speed, outputs)
    log_every = max(1, int(settings.get("log_every", 1)))
    for number, _ in enumerate(feed(engine, items, progress=bool(settings.get("progress", True))), start=1):
        if number % log_every == 0 and (log_every > 1 or number < 10_000 or number % 100 == 0):
            step = engine.scheduler.step_number
            trackers.log(step, engine.metrics.step_row(engine.scheduler, engine.executor.now()))
    engine.check()
    summary = engine.metrics.summary(engine.scheduler, engine.allocator)
    virtual = config.get("executor") == "roofline"
    summary["clock"] = "virtual" if virtual else "steps" if recording else f"{options.step_s} s a step"
    summary["evictions"], summary["num_blocks"] = summary["num_evictions"], engine.allocator.num_blocks
    summary["goodput_requests_per_s"] = engine.metrics.goodput(options.slo_ttft_s, options.slo_tpot_s)
    summary["num_skipped_lines"] = trace.num_skipped if trace is not None else 0
    return summary


def build_engine(
    config: Mapping[str, Any],
    options: ReplayOptions,
    log: Any,
    recording: Recording | None,
    outputs: MutableMapping[tuple[int, int], TokenArray] | None = None,
) -> tuple[Engine, EvictionPolicy]:
    """The engine of a serve run with a ReplayExecutor in place of the model, and its policy.

    Args:
        outputs: what a trace's requests generate, see ReplayExecutor; a recording brings its own.
    """
    cache, seed = section(config, "cache"), int(config.get("seed", 0))
    num_blocks, block_size = _num_blocks(cache, options), int(cache.get("block_size", 16))
    engine_options = call_checked("engine", EngineOptions, section(config, "engine"))
    longest = recording.max_model_len if recording is not None else _DEFAULT_LEN
    max_len = min(engine_options.max_model_len or longest, num_blocks * block_size)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "max_model_len": max_len, "seed": seed}
    policy: EvictionPolicy = build_component("eviction", config.get("eviction") or "lru", shared)
    allocator = build_allocator(
        config.get("allocator") or "prefix_cow",
        policy,
        config.get("hash") or "sha256",
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_len,
        seed=seed,
    )
    executor = _executor(config, options, recording, outputs)
    engine = Engine(
        allocator,
        executor,
        max_model_len=max_len,
        max_batch_tokens=engine_options.max_batch_tokens,
        max_batch_requests=engine_options.max_batch_requests,
        chunk_size=engine_options.chunk_size,
        preempt_every=engine_options.preempt_every,
        eos_token_ids=recording.eos_token_ids if recording else (),
        seed=seed,
        log=log,
    )
    if recording is not None:
        executor.clock = lambda: float(engine.scheduler.step_number)  # type: ignore[attr-defined]
    return engine, policy


def _executor(
    config: Mapping[str, Any],
    options: ReplayOptions,
    recording: Recording | None,
    outputs: MutableMapping[tuple[int, int], TokenArray] | None,
) -> Executor:
    if recording is not None:
        outputs = {(r.number, i): tokens for r in recording.requests for i, tokens in enumerate(r.outputs)}
        tops = {(r.number, i): top for r in recording.requests for i, top in enumerate(r.tops)}
        return ReplayExecutor(constant_step(0.0), outputs=outputs, tops=tops)
    if config.get("executor") == "roofline":
        return ReplayExecutor(
            Roofline(
                device=options.device,
                shape=options.shape,
                dtype=options.dtype,
                efficiency=options.efficiency,
                overhead_s=options.overhead_s,
            ),
            outputs=outputs,
        )
    return ReplayExecutor(constant_step(options.step_s), outputs=outputs)


def feed(engine: Engine, items: Iterable[_Item], *, progress: bool = False) -> Iterator[None]:
    """Submit each item when its time has come and step until all have ended; yields after every step.

    Streaming: no more than the requests in flight are in memory.
    """
    from framework.report.progress import replay_progress

    source = iter(items)
    pending = next(source, None)
    with replay_progress(enabled=progress) as tick:
        while pending is not None or engine.num_unfinished:
            now = engine.executor.now()
            while pending is not None and (pending.arrival_s <= now or not engine.num_unfinished):
                engine.submit(
                    pending.prompt,
                    pending.sampling,
                    arrival_s=pending.arrival_s,
                    namespace=pending.namespace,
                    tenant=pending.tenant,
                    priority=pending.priority,
                )
                pending = next(source, None)
            engine.step()
            tick(engine)
            yield


def trace_items(
    requests: Iterable[TraceRequest],
    speed: float = 1.0,
    outputs: MutableMapping[tuple[int, int], TokenArray] | None = None,
) -> Iterator[_Item]:
    """Trace requests as prompts: a block id becomes `block_tokens` equal tokens, what nobody named is unique.

    Ids are numbered anew in order of appearance, so that any id fits a token; scopes become namespaces.

    Args:
        outputs: takes the recorded tokens of each request's first sample as the request is handed out, for the
            executor. Beams search on their own.
    """
    if speed <= 0:
        raise ConfigError(f"workload.speed must be above 0, found {speed}")
    numbers: dict[int, int] = {}
    for number, request in enumerate(requests):
        if outputs is not None and request.output is not None and len(request.output) and request.beam_width == 1:
            outputs[number, 0] = request.output
        yield _Item(
            prompt=_prompt(request, number, numbers),
            sampling=Sampling(
                max_tokens=max(1, request.output_tokens),
                n=request.n,
                beam_width=request.beam_width,
                ignore_eos=True,
            ),
            arrival_s=request.arrival_s / speed,
            namespace=Namespace(salt=request.scope),
            tenant=request.tenant,
        )


def _prompt(request: TraceRequest, number: int, numbers: dict[int, int]) -> TokenArray:
    if request.tokens is not None:
        return request.tokens
    # Below OUTPUT_BASE: named blocks count up from 0, unnamed tokens of request `number` down from the top.
    unnamed = OUTPUT_BASE - 1 - number
    prompt = np.full(request.input_tokens, unnamed, dtype=np.int32)
    if request.block_ids is not None:
        named = [numbers.setdefault(int(name), len(numbers)) for name in request.block_ids]
        tokens = np.repeat(np.array(named, dtype=np.int32), request.block_tokens)[: request.input_tokens]
        prompt[: len(tokens)] = tokens
    return prompt


def _recorded_items(recording: Recording) -> Iterator[_Item]:
    for request in recording.requests:
        yield _Item(
            prompt=request.prompt,
            sampling=replace(request.sampling, seed=request.seed),
            arrival_s=float(request.arrival_step),
            namespace=request.namespace,
            tenant=request.tenant,
            priority=request.priority,
        )


def _trace(config: Mapping[str, Any], *, block_tokens: int | None) -> tuple[Trace, int | None, float]:
    workload = section(config, "workload")
    name = workload.pop("name", None)
    if name != "trace":
        raise ConfigError(f"mode=replay takes workload=trace or workload=recording, found {name!r}")

    def trace(
        *,
        path: Path,
        format: str = "auto",
        block_tokens: int | None = block_tokens,
        limit: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        speed: float = 1.0,
    ) -> tuple[Trace, int | None, float]:
        return open_trace(path, format=format, block_tokens=block_tokens, on_error=on_error), limit, speed

    given = {key: value for key, value in workload.items() if not (key == "block_tokens" and value is None)}
    return call_checked("workload.trace", trace, given)


def _first(requests: Iterable[TraceRequest], limit: int | None) -> Iterator[TraceRequest]:
    for number, request in enumerate(requests):
        if limit is not None and number >= limit:
            return
        yield request
