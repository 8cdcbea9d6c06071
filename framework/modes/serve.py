"""mode=serve: a real model answers a workload, and the run directory says what happened."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from framework import workload
from framework.config.config import Choice, Config
from framework.engine import graphs
from framework.engine.executors.checks import default_device, require_no_foresight, require_served
from framework.engine.pool import block_bytes
from framework.engine.request import Completion, Request
from framework.engine.sizes import LengthWarning
from framework.errors import ConfigError
from framework.guard.backend import GuardedBackend
from framework.guard.facts import Reporting, reported
from framework.guard.policy import GuardedPolicy
from framework.guard.workload import GuardedWorkload
from framework.interfaces.below import Below
from framework.interfaces.mode import OnBegin
from framework.interfaces.workload import Answer
from framework.llm import LLM, Trial, namespace_of, pool_facts
from framework.model.loading import LoadedModel
from framework.model.options import Model, model_of
from framework.model.tokenizer import encode
from framework.modes.dense_check import Verdict, compare
from framework.modes.replay import replayed_hit_rate, request_row
from framework.modes.replay_input import equal_bytes
from framework.modes.session import KINDS, Session, names_of
from framework.registry.components import build_component
from framework.replay.items import submit, write_recording
from framework.results.layout import RECORDING, REQUESTS
from framework.workload import Workload, WorkloadRequest


def serve(config: Config, on_begin: OnBegin = lambda path: None) -> dict[str, Any]:
    """Serve `config`'s workload on its model; returns what `result.json` holds. See api.run.

    Raises:
        ConfigError: a policy that needs the future, which nobody knows while requests are served.
    """
    with Session(config, on_begin=on_begin) as session:
        require_no_foresight(config.eviction.plain())
        check_backend(config)
        with torch_threads(config) as session.facts["num_threads"], closing(_model(config).load(
            device=default_device(config.device), seed=config.seed,
            tensor_parallel_size=config.engine.tensor_parallel_size,
        )) as model:  # fmt: skip
            requests = workload.make(config.workload.name, config.workload.options, seed=config.seed)
            items = build_workload(requests, config.workload.name, model)
            session.facts |= GuardedWorkload(requests).result()
            longest = max(item.max_total_tokens for item in items)
            own_dtype = config.cache.kv_dtype in (None, str(model.decoder.dtype).removeprefix("torch."))
            trial = session.trial(record=config.run.record or not own_dtype)  # `what_fewer_bits_buy` replays it
            with build_llm(config, model, longest=longest, trial=trial) as llm:
                session.begin(llm.device)
                session.say_length(
                    config.engine.max_model_len, longest, llm.max_model_len, llm.engine.limits.length_advice
                )
                return _answer(llm, session, items, requests)


_SMALL_WEIGHTS = 2**18
"""Elements of a layer's largest matrix below which one thread computes."""
# NOTE: threads of torch wait by spinning. In operations of microseconds they gain nothing on a quiet machine, and where
# others compute they wait for a core: at a load of 14 to 22 on two cores the tiny model made 29 tokens a second with
# two threads, 150 to 310 with one.


@contextmanager
def torch_threads(config: Config) -> Iterator[int]:
    """Threads of torch for a run, as `engine.num_threads` says, and as before after it."""
    import torch

    before, asked = torch.get_num_threads(), config.engine.num_threads
    shape = _model(config).config()
    if asked is None and shape is not None and "OMP_NUM_THREADS" not in os.environ:
        largest = shape.hidden_size * max(shape.hidden_size, shape.intermediate_size)
        asked = 1 if largest < _SMALL_WEIGHTS and default_device(config.device) == "cpu" else None
    torch.set_num_threads(asked or before)
    try:
        yield asked or before
    finally:
        torch.set_num_threads(before)


def _model(config: Config) -> Model:
    return model_of(config.model.name, config.model.options)


def _answer(llm: LLM, session: Session, items: Sequence[WorkloadRequest], source: Workload) -> dict[str, Any]:
    """Serve `items` and write down what became of them, also of a run that does not come to its end."""
    requests: list[Request] = []

    def work() -> None:
        requests.extend(submit_workload(llm, items))
        llm.drain(progress=session.settings.progress, on_step=session.log_step)
        llm.engine.check()
        llm.engine.state.tiers.close(drain=True)  # before the result, which says what failed at the end as well

    def outcome(complete: bool) -> dict[str, Any]:
        llm.add_texts(requests)
        verdicts, judged = compare(llm, requests, session.settings.check_requests if complete else 0)
        for request in requests:
            row = served_row(request, verdicts, llm.below, session.observed(request.number))
            session.run.log(REQUESTS, row)
        if session.settings.record:
            record(llm, requests, session.run.path / RECORDING)
        if complete:
            texts = (tuple(completion.text or "" for completion in request.completions) for request in requests)
            judged |= GuardedWorkload(source).judged([Answer(*one) for one in zip(items, texts, strict=True)])
        bought = what_fewer_bits_buy(session.config, llm, requests) if complete else {}
        return {**summarise(llm, session.config, complete=complete), **judged, **bought}

    return session.record(work, outcome)


def check_backend(config: Config) -> None:
    """Ask the backend whether it can serve the model's shape here, from the model's config alone.

    Raises:
        BackendUnavailable: with its reasons and what would work, before any weight is read.
        InvalidArgument: the model does not divide over engine.tensor_parallel_size ranks.
        ConfigError: CUDA graphs were asked for and cannot be.
    """
    model = _model(config)
    shape, asked = model.config(), model.dtype
    if shape is None:
        return
    backend = build_component("backend", config.backend.plain(), {"seed": config.seed})
    device, dtype = default_device(config.device), None if asked == "auto" else asked
    require_served(shape, dtype, backend, device, config.cache, config.engine.tensor_parallel_size)
    graphs.choose(config.engine, backend, device)  # refused before a model is loaded


def build_llm(config: Config, model: LoadedModel, *, longest: int, trial: Trial) -> LLM:
    """The cache and engine that `config` describes, around `model`.

    Where `engine.max_model_len` is null it is `longest`, the workload's longest request: what `contiguous` reserves.
    """
    parts: dict[str, Any] = {kind: choice.plain() for kind, choice in config.choices().items() if kind in KINDS}
    engine = config.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LengthWarning)  # the run says so itself, on one line
        return LLM(
            model,
            **parts,
            device=default_device(config.device),
            cache=config.cache,
            scheduling=config.scheduling.plain(),
            compression=config.compression.plain(),
            below=config.below.plain(),
            trial=trial,
            engine=engine if engine.max_model_len is not None else engine.changed(max_model_len=longest),
        )


def build_workload(source: Workload, name: str, model: LoadedModel) -> list[WorkloadRequest]:
    """The requests of workload `name` with prompts of token ids, through the model's tokenizer.

    Raises:
        WorkloadError: no request.
        ConfigError: prompts known by length or by block names only, which no model can read.
    """
    items = []
    for item in workload.requests_of(source, name):
        if item.prompt is None:
            raise ConfigError(
                f"workload={name} has no prompts to read, only their lengths or block names: use mode=replay"
            )
        items.append(item if item.tokens is not None else replace(item, prompt=encode(model.tokenizer, item.prompt)))
    return items


def submit_workload(llm: LLM, items: Sequence[WorkloadRequest]) -> Iterator[Request]:
    """Queue one request after another, so that an interrupt loses none that is queued; the clock starts now."""
    llm.executor.restart_clock()
    for item in items:
        yield submit(llm.engine, replace(item, namespace=namespace_of(llm.namespace, item.namespace)))


def record(llm: LLM, requests: Sequence[Request], path: Path) -> None:
    """Write what `llm`, which records, has served."""
    assert llm.engine.candidates is not None
    write_recording(
        path,
        requests,
        llm.engine.candidates,
        eos_token_ids=llm.model.tokenizer.eos_token_ids,
        max_model_len=llm.engine.max_model_len,
        window=llm.engine.limits.window,
    )


def what_fewer_bits_buy(config: Config, llm: LLM, requests: Sequence[Request]) -> dict[str, Any]:
    """See `equal_bytes`: the run is replayed over a pool of the model's dtype. Empty where that is the pool's, where
    several pools would have to be weighed against each other, or where tokens were dropped by their keys."""
    if llm.kv_dtype == llm.spec.dtype or llm.groups or llm.compression.reads_cache:
        return {}
    num_layers = len(llm.pool.layers)
    stored, model_dtype_bytes = (block_bytes(spec, num_layers) for spec in (llm.spec, replace(llm.spec, kv_dtype=None)))
    with tempfile.TemporaryDirectory(prefix="kvlab-") as folder:
        path = Path(folder) / RECORDING
        record(llm, requests, path)
        recorded = config.changed(executor="none", workload=Choice("recording", {"path": str(path)}))
        return equal_bytes(
            llm.num_blocks, stored, model_dtype_bytes, lambda blocks: replayed_hit_rate(recorded, blocks)
        )


def summarise(llm: LLM, config: Config, *, complete: bool) -> dict[str, Any]:
    """What the run measured, and on what; of one that broke off (not `complete`) without what plugins report."""
    result: dict[str, Any] = {
        "clock": "wall",
        **names_of(config, (*KINDS, "scheduling", "compression", "model", "workload")),
    }
    result.update(
        device=llm.device,
        dtype=llm.spec.dtype,
        kv_dtype=llm.kv_dtype,
        num_blocks=llm.num_blocks,
        block_size=llm.spec.block_size,
    )
    size = llm.model.decoder.shard.size
    result.update(tensor_parallel_size=size, kv_bytes=llm.kv_bytes, kv_bytes_per_rank=llm.kv_bytes // size)
    result.update(llm.engine.state.summary(complete=complete) | llm.below.names())
    result.update(llm.executor.summary(), warm_up_s=llm.warm_up_s, **pool_facts(llm))
    if not complete:  # one of them may be what failed
        return result
    plugins: dict[str, Reporting] = {
        "allocator": llm.engine.state.guarded,
        "eviction": GuardedPolicy(llm.policy),
        "backend": GuardedBackend(llm.backend),
    }
    return reported(plugins) | result


def served_row(
    request: Request, verdicts: Sequence[Verdict], below: Below, observed: Mapping[str, Any]
) -> dict[str, Any]:
    """One request for `requests.jsonl`, with what observers say of it, what was generated and whether the dense model
    agrees.

    `dense` is "equal", "differs" (and `dense_differs_at` the index of the first such token) or null: not compared.
    """
    verdict = next((verdict for verdict in verdicts if verdict.request == request.number), None)
    row = {**request_row(request, below), **observed}
    row["dense"] = None if verdict is None else "equal" if verdict.differs_at is None else "differs"
    row["dense_differs_at"] = None if verdict is None else verdict.differs_at
    row["completions"] = [_completion(completion) for completion in request.completions]
    return row


def _completion(completion: Completion) -> dict[str, Any]:
    """What a model generated: text, tokens and, where they were asked for, log-probabilities."""
    row: dict[str, Any] = {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "cumulative_logprob": completion.cumulative_logprob,
    }
    if completion.logprobs is not None:
        row["token_logprobs"] = [position.chosen for position in completion.logprobs]
        row["top_logprobs"] = [[list(pair) for pair in position.top] for position in completion.logprobs]
    return row
