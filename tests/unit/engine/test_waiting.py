"""The waiting queue as a plugin orders it: what it learns of the cache, its bounds, and what the engine does first."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.errors import PluginError
from framework.interfaces.scheduling import QueueView, Scheduling, WaitingRequest
from framework.registry.components import build_allocator
from framework.sampling import Sampling

ONE = Sampling(max_tokens=1, ignore_eos=True)


def engine_of(
    plugin: Scheduling | None, *, num_blocks: int = 32, rows: int = 1, allocator: Any = "prefix_cow"
) -> Engine:
    return Engine(
        build_allocator(allocator, "lru", "xxh64", num_blocks=num_blocks, block_size=4, max_model_len=128),
        ReplayExecutor(constant_step(1.0)),
        limits=ModelLimits(max_model_len=128),
        options=EngineOptions(max_batch_tokens=64, max_batch_requests=rows),
        virtual_clock=True,
        scheduling=plugin,
    )


def order_of(engine: Engine) -> list[int]:
    """Numbers of the requests as they end, one row at a time."""
    ended: list[int] = []
    engine.state.on_end = lambda request: ended.append(request.number)
    engine.run()
    return ended


class Newest(Scheduling):
    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return waiting[::-1]


class Looks(Scheduling):
    """Compares what it learns with what a lookup says, whenever it is asked."""

    needs_hits = True

    def __init__(self, seed: int) -> None:
        self.draw, self.engine, self.num_compared, self.num_hit = random.Random(seed), None, 0, 0

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        assert self.engine is not None
        for request in waiting:
            asked = self.engine.state.requests[request.number]
            hit = self.engine.allocator.lookup(asked.prompt, asked.namespace)
            assert request.hit_tokens == hit.num_tokens, request
            assert list(request.hashes) == list(hit.hashes), request
            self.num_compared += 1
            self.num_hit += hit.num_tokens > 0
        order = list(waiting)
        self.draw.shuffle(order)
        return order


def test_without_a_plugin_and_with_the_base_class_the_engine_keeps_its_own_queue() -> None:
    assert engine_of(None).state.ordered is None
    assert engine_of(Scheduling()).state.ordered is None


def test_the_order_is_the_plugins() -> None:
    engine = engine_of(Newest())
    for number in range(4):
        engine.submit([number] * 5, ONE, arrival_s=0.0)
    assert order_of(engine) == [3, 2, 1, 0]
    assert engine.state.summary()["scheduling_bound"] == "none: a request may starve"


def test_a_bound_on_those_that_pass_is_kept_and_counted() -> None:
    plugin = Newest()
    plugin.max_passed = 2
    engine = engine_of(plugin)
    for number in range(6):
        engine.submit([number] * 5, ONE, arrival_s=0.0)
    assert order_of(engine) == [5, 4, 0, 1, 2, 3], "after two have passed, the oldest go first"
    assert engine.state.summary()["scheduling_overdue"] == 3, "the last would have been next in any order"
    assert engine.state.summary()["scheduling_bound"] == "passed over 2 times"


def test_a_bound_on_the_wait_is_kept() -> None:
    plugin = Newest()
    plugin.max_wait_s = 3.0
    engine = engine_of(plugin)
    for number in range(6):
        engine.submit([number] * 5, ONE, arrival_s=0.0)
    assert order_of(engine)[:3] == [5, 4, 3]
    assert order_of(engine) == []


@pytest.mark.parametrize("allocator", ["prefix_cow", "prefix", "radix"])
@pytest.mark.parametrize("seed", range(4))
def test_what_an_order_learns_of_the_cache_is_what_a_lookup_says(allocator: str, seed: int) -> None:
    draw, plugin = random.Random(seed), Looks(seed)
    engine = engine_of(plugin, num_blocks=40, rows=2, allocator=allocator)
    plugin.engine = engine  # type: ignore[assignment]
    at_s = 0.0
    for number in range(60):
        at_s += draw.choice((0.0, 0.0, 1.0))
        shared = [100 * draw.randrange(3) + token for token in range(draw.choice((0, 4, 12, 24)))]
        prompt = [*shared, *(1000 + 40 * number + token for token in range(draw.randrange(1, 20)))]
        engine.submit(prompt, Sampling(max_tokens=draw.randrange(1, 6), ignore_eos=True), arrival_s=at_s)
    engine.run()
    engine.check()
    assert plugin.num_compared > 500
    assert plugin.num_hit > 50
    assert not engine.state.ordered._hits._watching, "what left the queue is watched no more"  # type: ignore[union-attr]


def test_one_that_reads_hits_and_does_not_say_so_is_refused() -> None:
    class Reads(Newest):
        def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
            return sorted(waiting, key=lambda request: request.hit_tokens)

    engine = engine_of(Reads())
    engine.submit([1, 2, 3], ONE)
    with pytest.raises(PluginError, match="needs_hits is False"):
        engine.run()


def test_a_cancelled_request_that_waits_is_forgotten() -> None:
    engine = engine_of(Newest())
    first, second, third = (engine.submit([number] * 5, ONE, arrival_s=0.0) for number in range(3))
    engine.step()
    engine.cancel(second)
    assert len(engine.state.waiting) == 1
    assert order_of(engine)[-1] == first.number
    assert third.status.value == "finished"


def test_first_come_first_served_makes_no_call_more_than_an_engine_without_an_order() -> None:
    def calls(order: Scheduling | None) -> Counter[str]:
        engine, counted = engine_of(order, num_blocks=48, rows=3), Counter[str]()
        for number in range(30):
            engine.submit([number % 4] * 9, Sampling(max_tokens=4, ignore_eos=True), arrival_s=float(number // 3))

        def count(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                counted[frame.f_code.co_qualname] += 1

        sys.setprofile(count)
        try:
            engine.run()
        finally:
            sys.setprofile(None)
        return counted

    calls(None)  # what is done once a process is done
    without = calls(None)
    assert calls(Scheduling()) == without
    assert without.total() > 1000
    assert calls(Newest()).total() > 1.05 * without.total(), "an order of its own does call more"


def test_of_a_thousand_waiting_requests_a_step_looks_up_those_alone_under_which_the_cache_changed() -> None:
    class Asks(Scheduling):
        needs_hits = True

        def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
            for request in waiting:
                assert request.hit_tokens in (0, 8, 12)
            return None

    engine = engine_of(Asks(), num_blocks=2000, rows=2)
    for number in range(1000):  # groups of 20 that share two blocks, of which one member is admitted after another
        engine.submit([*[number // 20] * 8, *[100 + number] * 5], ONE, arrival_s=0.0)
    lookup, looked = engine.state.guarded.lookup, list[int]()

    def counted(*given: Any) -> Any:
        looked[-1] += 1
        return lookup(*given)

    engine.state.guarded.lookup = counted  # type: ignore[method-assign]
    for _ in range(100):
        looked.append(0)
        engine.step()
    assert looked[0] == 1000 + 2
    # Two are admitted a step; those of its group look again as the first member's shared blocks are published.
    assert max(looked[1:]) <= 2 + 20, looked
    assert sum(looked[1:]) <= 99 * 2 + 10 * 20, looked


def steps_of(engine: Engine) -> list[list[int]]:
    """Numbers of the requests that run in each step, most important first."""
    steps: list[list[int]] = []
    forward = engine.executor.forward

    def noted(step: Any, rows: Any) -> None:
        steps.append([rows.sequence(row).request.number for row in rows.active().tolist()])
        forward(step, rows)

    engine.executor.forward = noted  # type: ignore[method-assign]
    engine.run()
    return steps


def test_what_runs_is_served_in_order_of_admission_and_comes_back_last_out_first_as_in_vllm() -> None:
    engine = engine_of(Newest(), num_blocks=12, rows=3)
    long = Sampling(max_tokens=20, ignore_eos=True)
    for number in range(5):
        engine.submit([number] * 9, long, arrival_s=0.0)
    steps = steps_of(engine)
    assert steps[0] == [4, 3, 2]
    out = [two for one, two in pairwise(steps) if len(two) < len(one)]
    assert out[:2] == [[4, 3], [4]], "the one that was admitted last goes first"
    assert next(step for step in steps if 4 not in step)[:2] == [3, 2], "and the last one out comes back first"


class Asked(Newest):
    """Notes how many run as it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[int] = []

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        self.running.append(len(view.running))
        return super().order(waiting, view)


def test_an_order_is_asked_before_the_first_admission_of_a_step() -> None:
    order = Asked()
    engine = engine_of(order, num_blocks=12, rows=3)
    for number in range(5):
        engine.submit([number] * 9, Sampling(max_tokens=20, ignore_eos=True), arrival_s=0.0)
    engine.run()
    assert order.running[0] == 0
    assert len(order.running) > 5, "asked also where one that was preempted is next"


def test_an_order_is_not_asked_where_no_row_is_free_as_vllm_does_not_look_at_its_queue() -> None:
    order = Asked()
    engine = engine_of(order, rows=2)
    for number in range(6):
        engine.submit([number] * 5, Sampling(max_tokens=4, ignore_eos=True), arrival_s=0.0)
    steps = steps_of(engine)
    assert len(steps) == 12
    assert order.running == [0, 0, 0], "one answer for each step that begins with a free row"
