"""mode=serve: a real model answers a workload, and the run directory says what happened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework import tracking, workload
from framework.build import section
from framework.engine.engine import Engine
from framework.engine.request import Request
from framework.llm import LLM, EngineOptions, default_device
from framework.model.choice import build_model
from framework.options import call_checked
from framework.tracking import RunDirectory, RunLabel, Trackers

_KINDS = ("allocator", "eviction", "hash", "backend")


def serve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Serve `config`'s workload on its model; returns what `result.json` holds. See build.run."""
    settings = section(config, "run")
    log_every = int(settings.get("log_every", 1))
    with RunDirectory(Path(settings["dir"]), overwrite=bool(settings.get("overwrite", True))) as run:
        tracker = section(config, "tracker")
        trackers = Trackers(run, tracking.build(tracker.pop("name", "none"), tracker))
        trackers.start(config, label(config))
        log = _event_log(run) if settings.get("events") else None
        llm = build_llm(config, log=log)
        run.write_provenance(provenance(config, llm.device))
        requests = submit_workload(llm, config)

        def on_step(engine: Engine) -> None:
            step = engine.scheduler.step_number
            if step % log_every == 0:
                trackers.log(step, engine.metrics.step_row(engine.scheduler, engine.executor.now()))

        failed = True
        try:
            llm.drain(progress=bool(settings.get("progress", True)), on_step=on_step)
            llm.engine.check()
            failed = False
        finally:
            llm.add_texts(requests)
            for request in requests:
                run.log_request(request_row(request))
            result = summarise(llm, config, requests, failed=failed)
            trackers.finish(result, failed=failed or result["num_failed"] > 0)
    return result


def build_llm(config: Mapping[str, Any], log: Any = None) -> LLM:
    """The model, cache and engine that `config` describes."""
    cache, options = section(config, "cache"), section(config, "engine")
    model, seed = section(config, "model"), int(config.get("seed", 0))
    device = default_device(config.get("device"))
    dtype = cache.pop("dtype", None)
    loaded = build_model(model.pop("name", "tiny"), model, dtype=dtype, device=device, seed=seed)
    parts: dict[str, Any] = {kind: config[kind] for kind in _KINDS if config.get(kind)}
    return call_checked(
        "cache",
        LLM,
        {**cache, **parts, "model": loaded, "device": device, "seed": seed, "log": log,
         "engine": call_checked("engine", EngineOptions, options)},
    )  # fmt: skip


def submit_workload(llm: LLM, config: Mapping[str, Any]) -> list[Request]:
    """Build the workload and queue all of it; the clock starts now."""
    options = section(config, "workload")
    items = list(workload.build(options.pop("name", "chat"), options, seed=int(config.get("seed", 0))))
    llm.executor.restart_clock()
    return [
        llm.submit(
            item.prompt,
            item.sampling,
            arrival_s=item.arrival_s,
            namespace=llm.namespace_for(item.namespace),
            priority=item.priority,
            tenant=item.tenant,
        )
        for item in items
    ]


def summarise(llm: LLM, config: Mapping[str, Any], requests: list[Request], *, failed: bool) -> dict[str, Any]:
    """The run's flat result, the dense check's verdict included."""
    from framework.check_dense import check_dense

    settings = section(config, "run")
    result: dict[str, Any] = {"status": "failed" if failed else "ok", "mode": "serve", "clock": "wall"}
    result.update({kind: (config.get(kind) or {}).get("name") for kind in (*_KINDS, "model", "workload")})
    result.update(seed=int(config.get("seed", 0)), device=llm.device, dtype=llm.spec.dtype)
    result.update(num_blocks=llm.num_blocks, block_size=llm.spec.block_size)
    result.update(llm.engine.metrics.summary(llm.engine.scheduler, llm.allocator))
    limit = int(settings.get("check_requests", 8))
    result.update(check_dense(llm.model, requests, limit, device=llm.device))
    return result


def request_row(request: Request) -> dict[str, Any]:
    """One request for `requests.jsonl`."""
    return {
        "request": request.number,
        "status": request.status.value,
        "reason": request.reason,
        "prompt_tokens": len(request.prompt),
        "cached_tokens": request.num_cached_tokens,
        "recomputed_tokens": request.num_recomputed_tokens,
        "preemptions": request.num_preemptions,
        "arrival_s": request.arrival_s,
        "first_token_s": request.first_token_s,
        "finished_s": request.finished_s,
        "completions": [
            {"text": c.text, "tokens": c.tokens, "finish_reason": c.finish_reason, "logprob": c.cumulative_logprob}
            for c in request.completions
        ],
    }


def label(config: Mapping[str, Any]) -> RunLabel:
    """How trackers call this run."""
    settings = section(config, "run")
    names = [str((config.get(kind) or {}).get("name", "default")) for kind in _KINDS]
    return RunLabel(
        name=str(settings.get("name") or "-".join(names)),
        group=str(settings.get("group") or ""),
        job_type="-".join(names),
    )


def provenance(config: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Where this run comes from."""
    components = {kind: str((config.get(kind) or {}).get("name", "default")) for kind in _KINDS}
    return tracking.collect_provenance(components=components, seeds={"seed": int(config.get("seed", 0))}, device=device)


def _event_log(run: RunDirectory) -> Any:
    return lambda event, **facts: run.log_event({"event": event, **facts})
