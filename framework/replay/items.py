"""Requests on their way into a replay's engine: from a trace or a recording, each submitted when its time has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace

import numpy as np

from framework.engine.engine import Engine
from framework.engine.executors.replay import OUTPUT_BASE
from framework.errors import ConfigError
from framework.replay.recording import Recording
from framework.sampling import Sampling
from framework.types import Hint, Namespace, TokenArray
from framework.workload.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class ReplayItem:
    """One request on its way into the engine."""

    prompt: TokenArray
    sampling: Sampling
    arrival_s: float
    namespace: Namespace
    tenant: str = ""
    priority: int = 0
    session: str | None = None
    category: str | None = None
    hint: Hint | None = None
    turn: int | None = None


def feed(engine: Engine, items: Iterable[ReplayItem], *, progress: bool = False) -> Iterator[None]:
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
                engine.submit(
                    pending.prompt,
                    pending.sampling,
                    arrival_s=pending.arrival_s,
                    namespace=pending.namespace,
                    tenant=pending.tenant,
                    priority=pending.priority,
                    session=pending.session,
                    category=pending.category,
                    hint=pending.hint,
                    turn=pending.turn,
                )
                pending = next(source, None)
            engine.step()
            tick(engine)
            yield


def trace_items(
    requests: Iterable[TraceRequest],
    speed: float = 1.0,
    outputs: MutableMapping[tuple[int, int], TokenArray] | None = None,
) -> Iterator[ReplayItem]:
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
        yield ReplayItem(
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
            session=request.session or None,
            category=request.category,
            hint=request.hint,
            turn=request.turn,
        )


def recorded_items(recording: Recording) -> Iterator[ReplayItem]:
    """The requests of a recording; arrivals are step numbers."""
    for request in recording.requests:
        yield ReplayItem(
            prompt=request.prompt,
            sampling=replace(request.sampling, seed=request.seed),
            arrival_s=float(request.arrival_step),
            namespace=request.namespace,
            tenant=request.tenant,
            priority=request.priority,
            session=request.session,
            category=request.category,
            hint=request.hint,
            turn=request.turn,
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
