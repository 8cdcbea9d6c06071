"""Requests of a full replay: from a trace or a recorded serve run to the engine, and their next uses in advance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from framework.engine.engine import Engine
from framework.engine.executors.replay import OUTPUT_BASE
from framework.engine.request import About, Request, Sequence
from framework.errors import ConfigError
from framework.interfaces.allocator import Allocator
from framework.interfaces.workload import Candidates, WorkloadRequest, answer, name_blocks
from framework.types import Namespace, TokenArray

FORMAT, VERSION = "kvlab-recording", 2
"""Of the file of a recorded serve run."""


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
    about: Any = {name: getattr(request, name) for name in About.__optional_keys__}
    return engine.submit(request.tokens, request.sampling, arrival_s=request.arrival_s, **about)


def trace_items(
    requests: Iterable[WorkloadRequest],
    outputs: MutableMapping[tuple[int, int], TokenArray] | None = None,
) -> Iterator[WorkloadRequest]:
    """A trace's requests with prompts of token ids: a block id becomes `block_tokens` equal tokens, what nobody named
    is unique, and answers are as long as recorded.

    An id below 2**29 is its own token, so that memory does not grow with the trace; larger ones are numbered from there
    in order of appearance.

    Args:
        outputs: takes the recorded tokens of each request's first sample as the request is handed out, for the
            executor. Beams search on their own.

    Raises:
        ConfigError: a request of text, which has no tokens without a model's tokenizer.
    """
    numbers: dict[int, int] = {}
    for number, request in enumerate(requests):
        asked, length = request.sampling, request.output_tokens
        if outputs is not None and request.output is not None and len(request.output) and asked.beam_width == 1:
            outputs[number, 0] = request.output
        sampling = answer(asked.max_tokens if length is None else length, asked.n, asked.beam_width)
        prompt = _prompt(request, number, numbers)
        yield replace(request, prompt=prompt, block_ids=None, block_tokens=0, sampling=sampling)


_LARGE = 2**29


def _prompt(request: WorkloadRequest, number: int, numbers: dict[int, int]) -> TokenArray:
    if request.tokens is not None:
        return request.tokens
    if request.prompt is not None:
        raise ConfigError("a replay has no tokenizer and this workload is text; take one of token ids, or a trace")
    # Below OUTPUT_BASE: named blocks from 0 up, unnamed tokens of request `number` down from the top.
    unnamed = OUTPUT_BASE - 1 - number
    prompt = np.full(request.input_tokens, unnamed, dtype=np.int32)
    if request.block_ids is not None:
        named = request.block_ids
        if len(named) and named.max() >= _LARGE:
            named = np.array(
                [name if name < _LARGE else numbers.setdefault(name, _LARGE + len(numbers)) for name in named.tolist()]
            )
        tokens = np.repeat(named.astype(np.int32), request.block_tokens)[: request.input_tokens]
        prompt[: len(tokens)] = tokens
    prompt.flags.writeable = False
    return prompt


def with_blocks(requests: Iterable[WorkloadRequest], block_tokens: int) -> Iterator[WorkloadRequest]:
    """Requests whose prompts are token ids without names, with names of blocks of `block_tokens` beside them."""
    for request in requests:
        if request.block_ids is None and request.tokens is not None:
            ids = name_blocks(request.tokens, block_tokens, request.namespace)
            request = replace(request, block_ids=ids, block_tokens=block_tokens)
        yield request


_NOTHING = np.empty(0, dtype=np.int64)


class Foresight:
    """The next use of each block of a request that is about to give its blocks back, for `Allocator.free`.

    Next uses count requests in order of arrival, from 1. A request preempted wants its own blocks again: they carry its
    own number, nearer than any to come. A block's next use is the next request after all that have released it, so that
    requests which end out of order leave no use in the past. Blocks of an output are requested by later prompts where
    the trace recorded its tokens, and never again where it did not.

    Args:
        requests: the whole trace as the replay will submit it.
        max_len: requests longer than this are rejected, so they use nothing.
    """

    def __init__(self, allocator: Allocator, requests: Iterable[WorkloadRequest], *, max_len: int) -> None:
        if not allocator.takes_future:
            raise ConfigError(
                f"{type(allocator).__name__} does not take the future (Allocator.takes_future), which this eviction "
                "policy needs; choose another allocator or policy"
            )
        self._size = allocator.block_size
        numbers: dict[tuple[int, int], int] = {}  # (block above, or the namespace's root; id) -> node
        roots: dict[Namespace, int] = {}
        prompts: list[int] = []
        self._nodes: list[npt.NDArray[np.int64]] = []  # of each request, its blocks
        self._named: list[tuple[int, int]] = []  # of each request, tokens in them, and in one
        for request in _admissible(requests, max_len, prompts):
            assert request.block_ids is not None
            node, path = roots.setdefault(request.namespace.root, -1 - len(roots)), list[int]()
            for name in request.block_ids.tolist():
                node = numbers.setdefault((node, name), len(numbers))
                path.append(node)
            self._nodes.append(np.array(path, dtype=np.int64))
            named = min(len(path) * request.block_tokens, request.input_tokens)
            self._named.append((named, request.block_tokens))
        self._following = _following(self._nodes, prompts, len(numbers))
        self._known = np.zeros(len(numbers))

    def attach(self, engine: Engine) -> None:
        engine.state.foresee = self

    def __call__(self, seq: Sequence, returning: bool) -> list[float]:
        number = seq.request.number
        if returning:
            return [float(number + 1)] * (len(seq.tokens) // self._size)
        uses: list[float] = self.next_uses(number).tolist()
        return uses

    def next_uses(self, number: int) -> npt.NDArray[np.float64]:
        """(m,) of the allocator's blocks that request `number`'s named tokens fill: prompt and recorded output.

        A block is requested again by whoever requests the trace block that holds its last token.
        """
        nodes, known = self._nodes[number], self._known
        known[nodes] = np.maximum(known[nodes], self._following[number])
        named, block_tokens = self._named[number]
        last = (np.arange(1, named // self._size + 1) * self._size - 1) // block_tokens
        uses: npt.NDArray[np.float64] = known[nodes[last]]
        return uses


def _admissible(requests: Iterable[WorkloadRequest], max_len: int, prompts: list[int]) -> Iterator[WorkloadRequest]:
    """The requests that will be served, each prompt with its recorded output; `prompts` takes the prompts' blocks."""
    for request in requests:
        if request.block_ids is None:
            raise ConfigError("this trace has lengths only: no block is ever requested again, and no future helps")
        if request.input_tokens + max(1, request.output_tokens or 0) > max_len:
            prompts.append(0)
            yield replace(request, block_ids=_NOTHING)
        elif request.tokens is not None and request.output is not None and request.sampling.beam_width == 1:
            tokens = np.concatenate([request.tokens, request.output])
            prompts.append(len(request.tokens) // request.block_tokens)
            yield replace(
                request, prompt=tokens, block_ids=name_blocks(tokens, request.block_tokens, request.namespace)
            )
        else:
            prompts.append(len(request.block_ids))
            yield request


def _following(nodes: list[npt.NDArray[np.int64]], prompts: list[int], num_nodes: int) -> list[npt.NDArray[np.float64]]:
    """The next request, from 1, of each request's nodes that has them among the first `prompts` (R,) of its blocks."""
    coming, following = np.full(num_nodes, inf), list[npt.NDArray[np.float64]]()
    for request in range(len(nodes) - 1, -1, -1):
        path = nodes[request]
        following.append(coming[path])
        coming[path[: prompts[request]]] = request + 1
    return following[::-1]


def write_recording(
    path: Path,
    requests: Iterable[Request],
    candidates: Mapping[int, list[Candidates]],
    *,
    eos_token_ids: Iterable[int],
    max_model_len: int,
    window: int | None,
) -> None:
    """Write down a serve run's requests, so that a replay without its model makes the same decisions.

    Of a drained engine; refused ones and those that never arrived are left out. `workload=recording` reads the file:
    one JSON header line, then one object a request, in order of submission. `tops` are, for beam search, the ids and
    log-probabilities (null for -inf) of the candidates at each of its steps.

    Args:
        candidates: of the beam searches, see `Engine.candidates`.
    """
    with path.open("wb") as file:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "eos_token_ids": sorted(int(i) for i in eos_token_ids),
            "max_model_len": max_model_len,
            "window": window,
        }
        file.write(orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE))
        for request in sorted(requests, key=lambda request: request.number):
            if request.arrival_step is not None:
                row = _row(request, candidates.get(request.number, []))
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _row(request: Request, tops: list[Candidates]) -> dict[str, Any]:
    return {
        "number": request.number,
        "key": request.key,
        "arrival_step": request.arrival_step,
        "prompt": request.prompt.tolist(),
        "sampling": asdict(request.sampling),
        "seed": request.seed,
        "priority": request.priority,
        "tenant": request.tenant,
        "session": request.session,
        "category": request.category,
        "hint": None if request.hint is None else asdict(request.hint),
        "turn": request.turn,
        "namespace": {name: value for name, value in asdict(request.namespace).items() if value != ()},
        "outputs": [completion.tokens for completion in request.completions] if not tops else [],
        "tops": tops,
    }
