"""Engines over a fake executor, and what they must return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framework import registry
from framework.engine.engine import Engine
from framework.engine.request import Request
from framework.registry.components import Component, build_allocator
from framework.sampling import Sampling
from framework.testing.fake_executor import FakeExecutor, FakeModel, log_softmax

ALLOCATORS: list[Component] = [
    *(name for name in registry.names("allocator") if name != "contiguous"),
    *({"name": "contiguous", "reserve": reserve} for reserve in ("max", "pow2", "oracle")),
]


def named(component: Any) -> str:
    """A test id."""
    return component if isinstance(component, str) else "-".join(str(value) for value in component.values())


def fake_engine(
    allocator: Component = "prefix_cow",
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    eviction: Component = "lru",
    hash: Component = "xxh64",
    model: FakeModel | None = None,
    max_model_len: int = 64,
    **options: Any,
) -> Engine:
    """An engine whose tokens follow from the prefix alone."""
    model = model or FakeModel()
    built = build_allocator(
        allocator, eviction, hash, num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len
    )
    options.setdefault("max_batch_requests", 8)
    options.setdefault("vocab_size", model.vocab_size)
    executor = FakeExecutor(num_blocks, block_size, model)
    return Engine(built, executor, max_model_len=max_model_len, **options)


def prompts(count: int, *, shared: int = 9, unique: int = 6, vocab_size: int = 32, seed: int = 0) -> list[list[int]]:
    """Prompts of different lengths that begin alike."""
    random = np.random.default_rng(seed)
    head = random.integers(0, vocab_size, shared).tolist()
    return [head + random.integers(0, vocab_size, 1 + i % unique).tolist() for i in range(count)]


def tokens_of(request: Request) -> list[list[int]]:
    """The token ids of each completion."""
    return [completion.tokens for completion in request.completions]


def expected(model: FakeModel, request: Request, stop: Sequence[int] = ()) -> list[list[int]]:
    """What `request`, which is no beam search, must return, from nothing but the model."""
    sampling = request.sampling
    return [
        model.generate(
            request.prompt.tolist(),
            sampling.max_tokens,
            temperature=sampling.temperature,
            seed=request.seed,
            stream=stream,
            stop=(*stop, *sampling.stop_token_ids),
        )
        for stream in range(sampling.n)
    ]


def slow_beams(
    model: FakeModel, prompt: Sequence[int], sampling: Sampling, stop: Sequence[int] = ()
) -> list[list[int]]:
    """Beam search as transformers does it with `early_stopping=False`, on lists, without sharing anything."""
    width, penalty = sampling.beam_width, sampling.length_penalty
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for step in range(1, sampling.max_tokens + 1):
        ways = []
        for parent, (score, tokens) in enumerate(live):
            values = log_softmax(model.logits_of([*prompt, *tokens])).astype(np.float32)
            ways += [(-(score + float(value)), parent, token) for token, value in enumerate(values)]
        ways = sorted(ways)[: 2 * width]
        grown = [(-negative, [*live[parent][1], token]) for negative, parent, token in ways]
        ended += [(score / step**penalty, tokens) for score, tokens in grown[:width] if tokens[-1] in stop]
        ended = sorted(ended, key=lambda entry: -entry[0])[:width]
        live = [(score, tokens) for score, tokens in grown if tokens[-1] not in stop][:width]
        if step == sampling.max_tokens:
            ended += [(score / step**penalty, tokens) for score, tokens in live]
        if not live or (len(ended) >= width and ended[width - 1][0] >= live[0][0] / step**penalty):
            break
    return [tokens for _, tokens in sorted(ended, key=lambda entry: -entry[0])[:width]]


def drive(engine: Engine, each_step: Callable[[Engine], Any] | None = None, limit: int = 2000) -> int:
    """Step to the end, checking that every step gets on; returns the steps taken."""
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    for step in range(limit):
        if not engine.num_unfinished:
            engine.check()
            return step
        engine.step()
        engine.allocator.check()
        if each_step is not None:
            each_step(engine)
    raise AssertionError(f"{engine.num_unfinished} requests unfinished after {limit} steps: {describe(engine)}")


def describe(engine: Engine) -> str:
    """Where an engine stands, for messages."""
    rows, stats = engine.state.rows, engine.allocator.stats()
    running = [
        (seq.id, seq.request.number, int(rows.computed[r]), int(rows.length[r]))
        for r, seq in enumerate(rows.sequences)
        if seq
    ]
    return (
        f"running (sequence, request, computed, length) {running}, waiting {len(engine.state.waiting)}, "
        f"reserved rows {engine.state.reserved_rows}, {stats}"
    )
