"""mode=replay: the same scheduler, allocators, policies and hash schemes on a trace, with the model taken out."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from framework import tracking
from framework.config.sections import EngineOptions, ReplayOptions
from framework.engine.engine import Engine
from framework.engine.executors.base import Executor
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.errors import ConfigError
from framework.interfaces.eviction import EvictionPolicy
from framework.modes.cache_only import cache_only
from framework.modes.replay_input import first, opened_trace, pool_blocks
from framework.modes.session import label, provenance
from framework.registry.components import build_allocator, build_component
from framework.registry.options import call_checked, section
from framework.replay.foresight import Foresight
from framework.replay.items import feed, recorded_items, trace_items
from framework.replay.recording import Recording, read_recording
from framework.replay.roofline import Roofline
from framework.tracking import RunDirectory, Trackers
from framework.types import TokenArray
from framework.workload.traces import Trace

_KINDS = ("allocator", "eviction", "hash", "backend")
_DEFAULT_LEN = 262_144


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
        items = recorded_items(recording)
    else:
        trace, limit, speed = opened_trace(config, block_tokens=None)
        outputs: dict[tuple[int, int], TokenArray] = {}
        engine, policy = build_engine(config, options, log, None, outputs)
        if policy.needs_future:
            Foresight(engine.allocator, first(trace, limit), max_len=engine.max_model_len).attach(engine.scheduler)
        items = trace_items(first(trace, limit), speed, outputs)
    log_every = max(1, int(settings.get("log_every", 1)))
    for number, _ in enumerate(feed(engine, items, progress=bool(settings.get("progress", True))), start=1):
        if number % log_every == 0 and (log_every > 1 or number < 10_000 or number % 100 == 0):
            step = engine.scheduler.step_number
            trackers.log(step, engine.metrics.step_row(engine.scheduler, engine.executor.now()))
    engine.check()
    summary = engine.metrics.summary(engine.scheduler, engine.allocator)
    virtual = config.get("executor") == "roofline"
    summary["clock"] = "virtual" if virtual else "steps" if recording else f"{options.step_s} s a step"
    summary["num_blocks"] = engine.allocator.num_blocks
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
    num_blocks, block_size = pool_blocks(cache, options), int(cache.get("block_size", 16))
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
        share_within_step=engine_options.share_within_step,
        preempt_every=engine_options.preempt_every,
        eos_token_ids=recording.eos_token_ids if recording else (),
        seed=seed,
        virtual_clock=True,
        log=log,
    )
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
        return ReplayExecutor(constant_step(0.0), outputs=outputs, tops=tops, step_clock=True)
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
