"""mode=serve: a real model answers a workload, and the run directory says what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework import tracking, workload
from framework.engine.engine import Engine
from framework.engine.executors.build import require_graphs
from framework.engine.executors.checks import attention_spec, default_device, require_backend
from framework.engine.executors.recording import RecordingExecutor
from framework.engine.request import Request
from framework.errors import PluginError
from framework.guard.backend import GuardedBackend
from framework.llm import LLM, EngineOptions, build_component
from framework.model.choice import build_model, model_config
from framework.model.loading import LoadedModel
from framework.model.shard import Shard
from framework.model.tokenizer import encode
from framework.modes.session import label, provenance
from framework.parallel.spread import spread_over
from framework.registry.options import call_checked, section
from framework.replay.recording import write_recording
from framework.tracking import RunDirectory, Trackers
from framework.types import TokenArray
from framework.workload import WorkloadRequest

_KINDS = ("allocator", "eviction", "hash", "backend")


def serve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Serve `config`'s workload on its model; returns what `result.json` holds. See build.run."""
    settings = section(config, "run")
    with RunDirectory(Path(settings["dir"]), overwrite=bool(settings.get("overwrite", True))) as run:
        tracker = section(config, "tracker")
        trackers = Trackers(run, tracking.build(tracker.pop("name", "none"), tracker))
        trackers.start(config, label(config))
        log = _event_log(run) if settings.get("events") else None
        check_backend(config)
        with closing(load_model(config)) as model:
            items = build_workload(config, model)
            llm = build_llm(config, model, longest=max((item.max_total_tokens for item in items), default=1), log=log)
            run.write_provenance(provenance(config, llm.device))
            return _answer(llm, config, items, run, trackers)


def _answer(
    llm: LLM, config: Mapping[str, Any], items: Sequence[EncodedRequest], run: RunDirectory, trackers: Trackers
) -> dict[str, Any]:
    """Serve `items` and write down what became of them, also of a run that fails."""
    settings = section(config, "run")
    log_every = int(settings.get("log_every", 1))
    recorder = record_into(llm) if settings.get("record") else None
    requests = submit_workload(llm, items)

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
        if recorder is not None:
            write_recording(
                run.path / "recording.jsonl",
                requests,
                recorder,
                eos_token_ids=llm.model.tokenizer.eos_token_ids,
                max_model_len=llm.engine.max_model_len,
            )
        result = summarise(llm, config, requests, failed=failed)
        trackers.finish(result, failed=failed or result["num_failed"] > 0)
    return result


def record_into(llm: LLM) -> RecordingExecutor:
    """Put a recorder between the engine and its executor."""
    recorder = RecordingExecutor(llm.executor)
    llm.engine.replace_executor(recorder)
    return recorder


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A workload's request and its prompt as token ids."""

    request: WorkloadRequest
    prompt: TokenArray

    @property
    def max_total_tokens(self) -> int:
        """Prompt plus the most tokens it may generate."""
        return len(self.prompt) + self.request.sampling.max_tokens


def check_backend(config: Mapping[str, Any]) -> None:
    """Ask the backend whether it can serve the model's shape here, from the model's config alone.

    Raises:
        BackendUnavailable: with its reasons and what would work, before any weight is read.
        InvalidArgument: the model does not divide over engine.tensor_parallel_size ranks.
        ConfigError: CUDA graphs were asked for and cannot be.
    """
    model, cache = section(config, "model"), section(config, "cache")
    shape = model_config(model.pop("name", "tiny"), model)
    options = call_checked("engine", EngineOptions, section(config, "engine"))
    if shape is not None:
        shape = Shard(0, options.tensor_parallel_size).config(shape)
    if shape is None or not config.get("backend"):
        return
    asked = [dtype for dtype in (model.get("dtype"), cache.get("dtype"), shape.dtype) if dtype not in (None, "auto")]
    spec = attention_spec(shape, str(asked[0]), int(cache.get("block_size", 16)), str(cache.get("layout", "NHD")))
    backend = build_component("backend", config["backend"], {"seed": int(config.get("seed", 0))})
    device = default_device(config.get("device"))
    require_backend(backend, spec, device)
    require_graphs(options, backend, device)


def load_model(config: Mapping[str, Any]) -> LoadedModel:
    """The model that `config` names, on its device."""
    model = section(config, "model")
    device, dtype = default_device(config.get("device")), section(config, "cache").get("dtype")
    options = call_checked("engine", EngineOptions, section(config, "engine"))
    return build_model(
        model.pop("name", "tiny"),
        model,
        dtype=dtype,
        device=device,
        seed=int(config.get("seed", 0)),
        spread=spread_over(options.tensor_parallel_size, timeout_s=options.collective_timeout_s),
    )


def build_llm(config: Mapping[str, Any], model: LoadedModel, *, longest: int, log: Any = None) -> LLM:
    """The cache and engine that `config` describes, around `model`.

    Where `engine.max_model_len` is null it is `longest`, the workload's longest request: what `contiguous` reserves.
    """
    cache, options = section(config, "cache"), section(config, "engine")
    cache.pop("dtype", None)
    if options.get("max_model_len") is None:
        options["max_model_len"] = longest
    parts: dict[str, Any] = {kind: config[kind] for kind in _KINDS if config.get(kind)}
    parts.update(cache, model=model, device=default_device(config.get("device")), seed=int(config.get("seed", 0)))
    return call_checked("cache", LLM, {**parts, "log": log, "engine": call_checked("engine", EngineOptions, options)})


def build_workload(config: Mapping[str, Any], model: LoadedModel) -> list[EncodedRequest]:
    """The workload's requests, through the model's tokenizer."""
    options = section(config, "workload")
    items = workload.build(options.pop("name", "chat"), options, seed=int(config.get("seed", 0)))
    return [EncodedRequest(item, encode(model.tokenizer, item.prompt)) for item in items]


def submit_workload(llm: LLM, items: Sequence[EncodedRequest]) -> list[Request]:
    """Queue everything; the clock starts now."""
    llm.executor.restart_clock()
    return [
        llm.engine.submit(
            item.prompt,
            item.request.sampling,
            arrival_s=item.request.arrival_s,
            namespace=llm.namespace_for(item.request.namespace),
            priority=item.request.priority,
            tenant=item.request.tenant,
        )
        for item in items
    ]


def summarise(llm: LLM, config: Mapping[str, Any], requests: list[Request], *, failed: bool) -> dict[str, Any]:
    """The run's flat result, the dense check's verdict included."""
    from framework.modes.dense_check import check_dense

    settings = section(config, "run")
    result: dict[str, Any] = {"status": "failed" if failed else "ok", "mode": "serve", "clock": "wall"}
    result.update({kind: (config.get(kind) or {}).get("name") for kind in (*_KINDS, "model", "workload")})
    result.update(seed=int(config.get("seed", 0)), device=llm.device, dtype=llm.spec.dtype)
    result.update(num_blocks=llm.num_blocks, block_size=llm.spec.block_size)
    size = llm.tensor_parallel_size
    result.update(tensor_parallel_size=size, kv_bytes=llm.kv_bytes, kv_bytes_per_rank=llm.kv_bytes // size)
    result.update(llm.engine.metrics.summary(llm.engine.scheduler, llm.allocator))
    result.update(llm.executor.summary())
    try:
        result.update({f"backend_{name}": value for name, value in GuardedBackend(llm.backend).facts().items()})
    except PluginError as error:
        result.setdefault("first_failure", str(error))
    ranks = llm.model.ranks
    limit = 0 if ranks is not None and ranks.broken else int(settings.get("check_requests", 8))
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


def _event_log(run: RunDirectory) -> Any:
    return lambda event, **facts: run.log_event({"event": event, **facts})
