"""Requests on their way into a replay's engine: from a trace or a recording, each submitted when its time has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace

import numpy as np

from framework.engine.engine import Engine
from framework.engine.executors.replay import OUTPUT_BASE
from framework.engine.request import Request
from framework.errors import ConfigError
from framework.interfaces.workload import Sampling, WorkloadRequest
from framework.types import TokenArray


def feed(engine: Engine, items: Iterable[WorkloadRequest], *, progress: bool = False) -> Iterator[None]:
    """Submit each item when its time has come and step until all have ended; yields after every step.

    Streaming: no more than the requests in flight are in memory.
    """
    from framework.cli.progress import replay_progress

    source = iter(items)
    pending = next(source, None)
    with replay_progress(enabled=progress) as tick:
        while pending is not None or engine.num_unfinished:
            now = engine.executor.now()
            while pending is not None and (pending.arrival_s <= now or not engine.num_unfinished):
                submit(engine, pending)
                pending = next(source, None)
            engine.step()
            tick(engine)
            yield


def submit(engine: Engine, request: WorkloadRequest) -> Request:
    """Queue one request of token ids, with all that is known of it."""
    assert request.tokens is not None
    return engine.submit(
        request.tokens,
        request.sampling,
        arrival_s=request.arrival_s,
        namespace=request.namespace,
        tenant=request.tenant,
        priority=request.priority,
        session=request.session,
        category=request.category,
        hint=request.hint,
        turn=request.turn,
        key=request.key,
    )


def trace_items(
    requests: Iterable[WorkloadRequest],
    outputs: MutableMapping[tuple[int, int], TokenArray] | None = None,
) -> Iterator[WorkloadRequest]:
    """A trace's requests with prompts of token ids: a block id becomes `block_tokens` equal tokens, what nobody named
    is unique, and answers are as long as recorded.

    Ids are numbered anew in order of appearance, so that any id fits a token.

    Args:
        outputs: takes the recorded tokens of each request's first sample as the request is handed out, for the
            executor. Beams search on their own.

    Raises:
        ConfigError: a request of text, which has no tokens without a model's tokenizer.
    """
    numbers: dict[int, int] = {}
    for number, request in enumerate(requests):
        searches = request.sampling.beam_width > 1
        if outputs is not None and request.output is not None and len(request.output) and not searches:
            outputs[number, 0] = request.output
        yield replace(request, prompt=_prompt(request, number, numbers), block_ids=None, block_tokens=0,
                      sampling=_answer(request))  # fmt: skip


def _answer(request: WorkloadRequest) -> Sampling:
    """As many tokens as recorded, at least one, or at most as many as asked for; ends of text are the model's."""
    asked, length = request.sampling, request.output_tokens
    return Sampling(max_tokens=max(1, asked.max_tokens if length is None else length), n=asked.n,
                    beam_width=asked.beam_width, ignore_eos=True)  # fmt: skip


def _prompt(request: WorkloadRequest, number: int, numbers: dict[int, int]) -> TokenArray:
    if request.tokens is not None:
        return request.tokens
    if request.prompt is not None:
        raise ConfigError("a replay has no tokenizer and this workload is text; take one of token ids, or a trace")
    # Below OUTPUT_BASE: named blocks count up from 0, unnamed tokens of request `number` down from the top.
    unnamed = OUTPUT_BASE - 1 - number
    prompt = np.full(request.input_tokens, unnamed, dtype=np.int32)
    if request.block_ids is not None:
        named = [numbers.setdefault(int(name), len(numbers)) for name in request.block_ids]
        tokens = np.repeat(np.array(named, dtype=np.int32), request.block_tokens)[: request.input_tokens]
        prompt[: len(tokens)] = tokens
    prompt.flags.writeable = False
    return prompt
