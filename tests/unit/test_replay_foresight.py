"""The optimum as a policy equals the optimum as an algorithm, and a full replay tells policies the future."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from replay_helpers import random_requests, workload

from framework.components import build_allocator
from framework.engine.engine import Engine
from framework.errors import ConfigError
from framework.interfaces.allocator import Allocator
from framework.replay.executors import ReplayExecutor, constant_step
from framework.replay.foresight import Foresight
from framework.replay.mode import feed, trace_items
from framework.replay.optimum import replay_optimum
from framework.replay.reference import replay
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.optimum import Optimum


@pytest.mark.parametrize("capacity", [1, 3, 8, 21, 200])
def test_the_policy_gives_the_optimum_s_integers(capacity: int) -> None:
    for seed in range(25):
        paths = workload(random_requests(seed, count=90, width=3, longest=5))
        found, best = replay(paths, Optimum(), capacity, bypass=Optimum.bypass), replay_optimum(paths, capacity)
        assert found == best, (seed, found, best)
        assert found.request_hits.tolist() == best.request_hits.tolist(), seed


def requests_of(ids: list[list[int]], block_tokens: int = 4, gap_s: float = 100.0) -> list[TraceRequest]:
    return [
        TraceRequest(
            arrival_s=gap_s * i,
            input_tokens=len(path) * block_tokens + 1,
            output_tokens=3,
            block_ids=np.array(path, dtype=np.int64),
            block_tokens=block_tokens,
        )
        for i, path in enumerate(ids)
    ]


def engine_of(eviction: Any, num_blocks: int, block_size: int, allocator: str = "prefix", **options: Any) -> Engine:
    built = build_allocator(
        allocator, eviction, "sha256", num_blocks=num_blocks, block_size=block_size, max_model_len=200
    )
    return Engine(built, ReplayExecutor(constant_step(0.025)), max_model_len=200, **options)


def drain(engine: Engine, requests: list[TraceRequest]) -> Engine:
    for _ in feed(engine, trace_items(requests)):
        engine.allocator.check()
    engine.check()
    return engine


@pytest.mark.parametrize("block_size", [2, 4, 8])
def test_next_uses_are_those_of_the_trace_at_any_block_size(block_size: int) -> None:
    requests = requests_of([[1, 2, 3, 4], [1, 2], [5, 6], [1, 2, 3, 4]])
    future = Foresight(engine_of(Belady(), 50, block_size).allocator, requests, max_len=200)
    inf = float("inf")
    expected = {2: [2, 2, 2, 2, 4, 4, 4, 4], 4: [2, 2, 4, 4], 8: [2, 4]}[block_size]
    assert future.next_uses(0).tolist() == expected
    assert future.next_uses(2).tolist() == [inf] * (8 // block_size)
    assert future.next_uses(3).tolist() == [inf] * (16 // block_size)
    assert future.next_uses(1).tolist() == [inf] * (8 // block_size), "request 3 has released them: nothing follows"


def test_a_request_too_long_to_be_served_uses_nothing() -> None:
    requests = requests_of([[1], [1, *list(range(100, 160))], [1]])
    future = Foresight(engine_of(Belady(), 50, 4).allocator, requests, max_len=200)
    assert future.next_uses(0).tolist() == [3]


def test_belady_in_the_engine_keeps_what_comes_back() -> None:
    ids = [[1, 2], [3, 4], [5, 6], [1, 2], [7, 8], [1, 2], [3, 4]]
    hits = {}
    for name in ("belady", "lru"):
        requests = requests_of(ids)
        engine = engine_of(name if name == "lru" else Belady(), 5, 4)
        if name == "belady":
            Foresight(engine.allocator, requests, max_len=200).attach(engine.scheduler)
        drain(engine, requests)
        hits[name] = engine.metrics.hit_blocks
    assert hits == {"belady": 4, "lru": 2}, "only belady gives up 3 and 4 for 5 and 6"


def test_spaced_requests_hit_in_the_engine_what_forced_belady_hits() -> None:
    """Without overlap the engine is the request model, but for the blocks that a request's own tokens take."""
    for seed in range(6):
        ids = random_requests(seed, count=80, width=3, longest=4)
        requests = requests_of(ids)
        engine = engine_of(Belady(), 12, 4)
        Foresight(engine.allocator, requests, max_len=200).attach(engine.scheduler)
        found = drain(engine, requests).metrics.hit_blocks
        low, high = (replay(workload(ids), Belady(), size).hit_blocks for size in (10, 12))
        assert low <= found <= high, (seed, low, found, high)


def test_a_preempted_request_finds_its_blocks_near() -> None:
    seen: list[list[float]] = []
    requests = requests_of([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3]], gap_s=0.0)
    engine = engine_of(Belady(), 30, 4, preempt_every=3)
    future = Foresight(engine.allocator, requests, max_len=200)
    plain = engine.allocator.foresee
    engine.allocator.foresee = lambda request, uses: (seen.append(list(uses)), plain(request, uses))[1]  # type: ignore[method-assign]
    future.attach(engine.scheduler)
    drain(engine, requests)
    assert engine.scheduler.num_preemptions > 0
    own = [uses for uses in seen if uses and set(uses) <= {1.0, 2.0, 3.0, 4.0}]
    assert own, seen


@pytest.fixture
def lengths() -> Iterator[TraceRequest]:
    return iter([TraceRequest(arrival_s=0.0, input_tokens=5, output_tokens=2)])


def test_an_allocator_that_takes_no_future_is_refused(lengths: Iterator[TraceRequest]) -> None:
    blind = type("Blind", (), {"foresee": Allocator.foresee, "block_size": 4})()
    with pytest.raises(ConfigError, match="Blind does not take the future"):
        Foresight(blind, lengths, max_len=10)


def test_a_trace_of_lengths_has_no_future(lengths: Iterator[TraceRequest]) -> None:
    with pytest.raises(ConfigError, match="lengths only"):
        Foresight(engine_of(Belady(), 5, 4).allocator, lengths, max_len=10)
