"""Random workloads on every allocator: what comes out is a function of the request, and every step gets on."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fake_engines import ALLOCATORS, FakeModel, assert_right, describe, fake_engine, named
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.engine.engine import Engine
from framework.engine.request import Request, Status
from framework.sampling import Sampling

EOS = (5,)
SUBJECTS = [*ALLOCATORS, {"name": "prefix_cow", "duplicates": "keep"}, {"name": "prefix_cow", "leaf_only": True}]

SAMPLINGS = st.one_of(
    st.builds(Sampling, max_tokens=st.integers(1, 8), temperature=st.sampled_from([0.0, 1.0]),
              ignore_eos=st.just(True)),
    st.builds(Sampling, max_tokens=st.integers(1, 8), n=st.integers(1, 3), temperature=st.just(1.0),
              seed=st.integers(0, 3)),
    st.builds(Sampling, max_tokens=st.integers(1, 6), beam_width=st.integers(2, 3),
              length_penalty=st.sampled_from([0.0, 1.0, 2.0])),
    st.builds(Sampling, max_tokens=st.integers(1, 8), stop_token_ids=st.just((2,)), logprobs=st.integers(0, 2)),
)  # fmt: skip
REQUESTS = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=12), SAMPLINGS, st.integers(0, 2), st.integers(0, 8)
)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    rows = draw(st.integers(3, 6))
    return {
        "requests": draw(st.lists(REQUESTS, min_size=1, max_size=6)),
        "num_blocks": draw(st.integers(2, 14)),
        "block_size": draw(st.sampled_from([1, 2, 3, 8])),
        "max_batch_requests": rows,
        "max_batch_tokens": draw(st.integers(rows, 24)),
        "chunk_size": draw(st.sampled_from([None, 1, 3])),
        "preempt_every": draw(st.sampled_from([0, 0, 1, 2, 3])),
        "window": draw(st.sampled_from([None, None, 1, 2, 4, 5, 9])),
        "eviction": draw(st.sampled_from(["lru", "lfu", "leaf_lru", "tail_lru"])),
        "cancel": draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=2)),
        "force": draw(st.integers(0, 2**16)),
    }


@pytest.mark.parametrize("count", [40, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("allocator", SUBJECTS, ids=named)
def test_outputs_depend_on_the_request_alone_and_every_step_gets_on(allocator: Any, count: int) -> None:
    @settings(max_examples=count)
    @given(case=cases())
    def check(case: dict[str, Any]) -> None:
        run_case(allocator, case)

    check()


def run_case(allocator: Any, case: dict[str, Any]) -> None:
    names = (
        "num_blocks", "block_size", "max_batch_requests", "max_batch_tokens", "chunk_size", "preempt_every",
        "window", "eviction",
    )  # fmt: skip
    options = {name: case[name] for name in names}
    if "duplicates" in allocator:
        options["hash"] = "sha256"  # xxh64 may collide
    model = FakeModel(vocab_size=6, window=case["window"])
    engine = fake_engine(allocator, model=model, eos_token_ids=EOS, max_model_len=24, **options)
    requests = [
        engine.submit(prompt, sampling, priority=priority, arrival_s=float(arrival))
        for prompt, sampling, priority, arrival in case["requests"]
    ]
    shuffle, bound = random.Random(case["force"]), 40 * sum(r.max_total_tokens * r.width for r in requests)
    for step in range(bound):
        for when, which in case["cancel"]:
            if when == step and which < len(requests):
                engine.cancel(requests[which])
        if not engine.num_unfinished:
            break
        before, tokens, clock = engine.num_unfinished, engine.executor.num_tokens, engine.executor.now()
        preempted = engine.metrics.num_preemptions
        engine.step()
        engine.allocator.check()
        counts_add_up(engine, requests)
        spent = engine.executor.num_tokens - tokens
        assert spent <= case["max_batch_tokens"], f"{spent} tokens in one step of {case['max_batch_tokens']}"
        moved = engine.num_unfinished < before or engine.executor.num_tokens > tokens or engine.executor.now() > clock
        assert moved or engine.metrics.num_preemptions > preempted, f"step {step} did nothing: {describe(engine)}"
        if case["force"] % 3 == 0 and shuffle.random() < 0.1:
            preempt_someone(engine, shuffle)
    assert not engine.num_unfinished, f"no end after {bound} steps: {describe(engine)}"
    engine.check()
    outcomes(engine, model, requests, case)


def preempt_someone(engine: Engine, shuffle: random.Random) -> None:
    running = [seq for seq in engine.state.rows.sequences if seq is not None]
    if running:
        engine.life.preempt(shuffle.choice(running))


def counts_add_up(engine: Engine, requests: list[Request]) -> None:
    state, metrics = engine.state, engine.metrics
    due = sum(seq.forks_due for seq in state.rows.sequences if seq is not None)
    assert state.reserved_rows == due, f"{state.reserved_rows} rows reserved, {due} forks due"
    assert due <= state.rows.num_free, f"{due} forks due, {state.rows.num_free} rows free"
    pool = engine.allocator.num_blocks * engine.allocator.block_size
    if metrics.num_steps:
        assert sum(metrics.slots) == pool, f"slots {metrics.slots} do not sum to {pool}"
        assert min(metrics.slots) >= 0, f"negative slots: {metrics.slots}"
    for request in requests:
        assert request.num_cached_tokens < max(1, len(request.prompt)), f"request {request.number} hit all its prompt"


def outcomes(engine: Engine, model: FakeModel, requests: list[Request], case: dict[str, Any]) -> None:
    cancelled = {which for _, which in case["cancel"]}
    for request in requests:
        status = request.status
        if status is Status.FINISHED:
            assert_right([request], model, () if request.sampling.ignore_eos else EOS)
        elif status is Status.CANCELLED:
            assert request.number in cancelled, request
        elif status is Status.REJECTED:
            assert any(letter.isdigit() for letter in request.reason), request.reason
        else:
            assert request.group, f"only beams may outgrow the pool together: {status} {request.reason}"
            assert "beam" in request.reason or "blocks" in request.reason, request.reason
    assert sum(engine.metrics.statuses.values()) == len(requests), engine.metrics.statuses
    scheduled = engine.metrics.num_scheduled_tokens
    assert scheduled == engine.executor.num_tokens, f"{scheduled} counted, {engine.executor.num_tokens} computed"
