"""What an order of the waiting queue costs: `fcfs` nothing, hits of 1,000 waiting requests less than 2 ms a step."""

from __future__ import annotations

import statistics
import time

from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.interfaces.scheduling import Scheduling
from framework.registry.components import build_allocator
from framework.sampling import Sampling

WAITING, SHARED = 1000, 20


def engine_of(order: Scheduling | None) -> Engine:
    return Engine(
        build_allocator("prefix", "lru", "xxh64", num_blocks=2048, block_size=16, max_model_len=1024),
        ReplayExecutor(constant_step(1.0)),
        limits=ModelLimits(max_model_len=1024),
        options=EngineOptions(max_batch_tokens=512, max_batch_requests=8),
        virtual_clock=True,
        scheduling=order,
    )


class Reads(Scheduling):
    """Reads every hit, in time, and leaves the order as it is."""

    needs_hits = True

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def order(self, waiting, view):
        begun = time.perf_counter()
        for request in waiting:
            request.hit_tokens
        self.seconds.append(time.perf_counter() - begun)


def test_hits_of_waiting_requests_are_looked_up_in_little_time_after_the_first_step(benchmark):
    """1,000 requests of 400 tokens in groups of 50 that share 256: a step's share of the time spent on their hits."""
    order, engine = Reads(), None

    def steps():
        nonlocal engine
        engine = engine_of(order)
        for number in range(WAITING):
            shared = [number % SHARED] * 256
            engine.submit([*shared, *([1000 + number] * 144)], Sampling(max_tokens=8, ignore_eos=True), arrival_s=0.0)
        order.seconds.clear()
        for _ in range(60):
            engine.step()

    benchmark.pedantic(steps, rounds=3)
    first, *rest = order.seconds
    benchmark.extra_info |= {"first_ms": 1e3 * first, "median_ms": 1e3 * statistics.median(rest)}
    benchmark.extra_info["mean_ms"] = 1e3 * statistics.fmean(rest)
    assert len(rest) > 40
    assert len(engine.state.waiting) > WAITING - 100


def test_first_come_first_served_beside_no_order(benchmark):
    """The same 200 requests with `fcfs` and without an order, one after the other: the ratio of the fastest."""
    spent = {"none": [], "fcfs": []}

    def both():
        for name, order in (("none", None), ("fcfs", Scheduling())):
            engine = engine_of(order)
            for number in range(200):
                engine.submit([number] * 40, Sampling(max_tokens=16, ignore_eos=True), arrival_s=0.0)
            begun = time.perf_counter()
            engine.run()
            spent[name].append(time.perf_counter() - begun)

    benchmark.pedantic(both, rounds=15, warmup_rounds=1)
    benchmark.extra_info["ratio"] = min(spent["fcfs"]) / min(spent["none"])
