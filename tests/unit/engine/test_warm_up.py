"""Steps of every kind before the first request: within the engine's limits, without a trace, and enough."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from framework.engine.warm_up import Limits, kinds_of_steps
from framework.llm import LLM, EngineOptions
from framework.sampling import Sampling


@settings(max_examples=200, deadline=None)
@given(
    num_blocks=st.integers(1, 50), block_size=st.integers(1, 20), max_len=st.integers(1, 600),
    max_tokens=st.integers(1, 300), max_rows=st.integers(1, 70), chunk_size=st.integers(1, 400),
)  # fmt: skip
def test_no_step_passes_a_limit_of_the_engine(**sizes: int) -> None:
    limits = Limits(**sizes)
    steps = list(kinds_of_steps(limits))
    assert len(steps) >= 3
    for step in steps:
        assert 0 < len(step) <= limits.max_rows, (step, limits)
        assert sum(new for new, _ in step) <= limits.max_tokens, (step, limits)
        for new, before in step:
            assert 0 < new <= limits.chunk_size
            assert before >= 0
            assert new + before <= limits.longest
    assert max(sum(new for new, _ in step) for step in steps[:2]) >= min(
        limits.max_tokens, limits.longest, limits.chunk_size
    )


def test_a_warm_up_leaves_no_trace() -> None:
    """Same tokens, events and counts with and without: the engine knows nothing of it."""
    found = []
    for warm in (False, True):
        log: list[Any] = []
        engine = EngineOptions(max_batch_requests=8, max_batch_tokens=48, warm_up=warm)
        llm = LLM("tiny", num_blocks=60, block_size=8, engine=engine, poison=True,
                  log=lambda event, log=log, **facts: log.append((event, facts)))  # fmt: skip
        samplings = [Sampling(max_tokens=12), Sampling(max_tokens=9, temperature=1.0, n=2, seed=4)] * 3
        requests = llm.generate([f"Request number {i}" for i in range(6)], samplings)
        found.append(([[c.tokens for c in r.completions] for r in requests], log, llm.executor.summary()))
        assert (llm.warm_up_s is not None) == warm
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torch_compiles_nothing_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dynamo traces is counted; what it would hand to a compiler is run as it is."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    engine = EngineOptions(max_batch_requests=6, max_batch_tokens=40, chunk_size=9, warm_up=True, compile=True)
    counters.clear()
    llm = LLM("tiny", num_blocks=80, block_size=8, engine=engine)
    before = counters["stats"]["unique_graphs"]
    assert before >= 2, "a program for one token, and one for any other number"
    for count in (1, 5, 2):
        samplings = [Sampling(max_tokens=7, ignore_eos=True), Sampling(max_tokens=5, n=2, temperature=1.0)] * 3
        llm.generate([[1 + i, *range(20, 24 + 13 * i)] for i in range(count)], samplings[:count])
    assert counters["stats"]["unique_graphs"] == before, counters["stats"]


def test_ranks_warm_up_together() -> None:
    engine = EngineOptions(max_batch_requests=4, max_batch_tokens=24, warm_up=True, tensor_parallel_size=2)
    with LLM("tiny", num_blocks=30, block_size=8, engine=engine) as spread:
        found = spread.generate("Two ranks", Sampling(max_tokens=6))[0].completions[0].tokens
    assert found == LLM("tiny", num_blocks=30).generate("Two ranks", Sampling(max_tokens=6))[0].completions[0].tokens
