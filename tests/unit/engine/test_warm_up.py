"""Steps of every kind before the first request: within the engine's limits, without a trace, and enough."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from fake_engines import make_llm, warm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from framework.engine import pool
from framework.engine.executors.model import ModelExecutor
from framework.engine.pool import block_bytes
from framework.engine.warm_up import kinds_of_steps
from framework.errors import OutOfMemory
from framework.interfaces.attention import AttentionSpec
from framework.llm import LLM, CacheOptions, EngineOptions, FaultOptions
from framework.model import memory
from framework.sampling import Sampling


@settings(max_examples=200, deadline=None)
@given(
    longest=st.integers(1, 600), max_tokens=st.integers(1, 300), max_rows=st.integers(1, 70),
    chunk_size=st.integers(1, 400),
)  # fmt: skip
def test_no_step_passes_a_limit_of_the_engine(longest: int, max_tokens: int, max_rows: int, chunk_size: int) -> None:
    limits = EngineOptions(max_batch_tokens=max_tokens, max_batch_requests=max_rows, chunk_size=chunk_size)
    steps = list(kinds_of_steps(longest, limits))
    assert len(steps) >= 3
    for step in steps:
        assert 0 < len(step) <= max_rows, (step, limits)
        assert sum(new for new, _ in step) <= max_tokens, (step, limits)
        for new, before in step:
            assert 0 < new <= chunk_size
            assert before >= 0
            assert new + before <= longest
    assert max(sum(new for new, _ in step) for step in steps[:2]) >= min(max_tokens, longest, chunk_size)


def test_a_warm_up_leaves_no_trace() -> None:
    """Same tokens, events and counts with and without: the engine knows nothing of it."""
    found = []
    for warmed in (False, True):
        log: list[Any] = []
        engine = EngineOptions(max_batch_requests=8, max_batch_tokens=48)
        llm = make_llm("tiny", num_blocks=60, block_size=8, engine=engine, faults=FaultOptions(poison=True),
                  log=lambda event, log=log, **facts: log.append((event, facts)))  # fmt: skip
        if warmed:
            warm(llm)
        samplings = [Sampling(max_tokens=12), Sampling(max_tokens=9, temperature=1.0, n=2, seed=4)] * 3
        requests = llm.generate([f"Request number {i}" for i in range(6)], samplings)
        found.append(([[c.tokens for c in r.completions] for r in requests], log, llm.executor.summary()))
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torch_compiles_nothing_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dynamo traces is counted; what it would hand to a compiler is run as it is."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    engine = EngineOptions(max_batch_requests=6, max_batch_tokens=40, chunk_size=9, compile=True)
    counters.clear()
    llm = LLM("tiny", cache=CacheOptions(num_blocks=80, block_size=8), engine=engine)
    warm(llm)
    before = counters["stats"]["unique_graphs"]
    assert before >= 2, "a program for one token, and one for any other number"
    for count in (1, 5, 2):
        samplings = [Sampling(max_tokens=7, ignore_eos=True), Sampling(max_tokens=5, n=2, temperature=1.0)] * 3
        llm.generate([[1 + i, *range(20, 24 + 13 * i)] for i in range(count)], samplings[:count])
    assert counters["stats"]["unique_graphs"] == before, counters["stats"]


def test_ranks_warm_up_together() -> None:
    engine = EngineOptions(max_batch_requests=4, max_batch_tokens=24, tensor_parallel_size=2)
    with LLM("tiny", cache=CacheOptions(num_blocks=30, block_size=8), engine=engine) as spread:
        warm(spread)
        found = spread.generate("Two ranks", Sampling(max_tokens=6))[0].completions[0].tokens
    assert found == LLM("tiny").generate("Two ranks", Sampling(max_tokens=6))[0].completions[0].tokens


class _Counter:
    """Stands for a device that counts what is held: `work` is done, and holds `peak` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free: int, peak: int) -> None:
        self.done = 0

        def peak_bytes(device: str, work: Any) -> int:
            work()
            self.done += 1
            return peak

        monkeypatch.setattr(memory, "counts", lambda device: True)
        monkeypatch.setattr(memory, "peak_bytes", peak_bytes)
        monkeypatch.setattr(pool, "free_bytes", lambda device: free)


def test_a_memory_fraction_is_of_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = ModelExecutor.forward

    def watched(self: ModelExecutor, step: Any, rows: Any) -> None:
        seen.append(step.num_tokens)
        forward(self, step, rows)

    monkeypatch.setattr(ModelExecutor, "forward", watched)
    each = block_bytes(AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=16, dtype="float32", block_size=8), 2)
    counter = _Counter(monkeypatch, free=1000 * each, peak=400 * each)
    engine = EngineOptions(max_batch_requests=4, max_batch_tokens=72, max_model_len=500)
    llm = LLM("tiny", cache=CacheOptions(num_blocks=None, block_size=8, memory_fraction=0.5), engine=engine)
    assert (llm.num_blocks, counter.done, max(seen)) == (299, 1, 72), seen[:5]
    assert llm.generate("Measured first", Sampling(max_tokens=5))[0].status.value == "finished"
    assert LLM("tiny", cache=CacheOptions(block_size=8, num_blocks=20)).num_blocks == 20
    assert counter.done == 1, "nothing is measured where the blocks are given"


def test_a_step_that_leaves_no_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _Counter(monkeypatch, free=2_000_000, peak=1_999_000)
    with pytest.raises(OutOfMemory, match=r"the largest step takes 1,999,000 more.*engine\.max_batch_tokens"):
        make_llm("tiny", block_size=8, memory_fraction=0.5, max_batch_requests=2, max_batch_tokens=16, max_model_len=64)


def test_a_peak_is_what_came_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"now": 70, "most": 0}
    for name, stand_in in {
        "synchronize": lambda device: None,
        "reset_peak_memory_stats": lambda device: held.update(most=held["now"]),
        "memory_allocated": lambda device: held["now"],
        "max_memory_allocated": lambda device: held["most"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    assert memory.peak_bytes("cuda:0", lambda: held.update(most=held["now"] + 30)) == 30
