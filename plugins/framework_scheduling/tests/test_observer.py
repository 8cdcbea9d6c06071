"""What the observer `queue` says of waits: checked by hand, and against the requests' own times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.interfaces.observer import Note
from framework.interfaces.scheduling import QueueView, Scheduling, WaitingRequest
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework_scheduling.length import ShortestJob
from framework_scheduling.observer import CAUSES, Queue


class Newest(Scheduling):
    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return waiting[::-1]


def engine_of(queue: Queue, order: Scheduling | None = None, **limits: int) -> Engine:
    sizes = {"num_blocks": 64, "block_size": 4, "max_model_len": 128}
    options = {"max_batch_tokens": 64, "max_batch_requests": 1, **limits}
    sizes["num_blocks"] = options.pop("num_blocks", 64)
    return Engine(
        build_allocator("prefix", "lru", "xxh64", **sizes),
        ReplayExecutor(constant_step(1.0)),
        limits=ModelLimits(max_model_len=128),
        options=EngineOptions(**options),
        virtual_clock=True,
        scheduling=order,
        trial=Trial(observers=(queue,)),
    )


def ask(engine: Engine, *, at_s: float = 0.0, tokens: int = 5, new: int = 1) -> None:
    number = engine.num_unfinished
    engine.submit([100 * number + tokens] * tokens, Sampling(max_tokens=new, ignore_eos=True), arrival_s=at_s)


def test_a_wait_is_for_rows_blocks_or_budget() -> None:
    for limits, cause in (
        ({"max_batch_requests": 1}, "rows"),
        ({"max_batch_requests": 4, "num_blocks": 4}, "blocks"),
        ({"max_batch_requests": 4, "max_batch_tokens": 9}, "budget"),
    ):
        queue = Queue()
        engine = engine_of(queue, **limits)
        for _ in range(3):
            ask(engine, tokens=9)
        engine.run()
        assert [queue.row(number)[f"wait_{cause}_s"] for number in range(3)] == [0.0, 1.0, 2.0], (cause, queue.row(2))
        assert queue.results()[f"wait_{cause}_s"] == sum(queue.results()[f"wait_{c}_s"] for c in CAUSES) == 3.0
        assert queue.results()["num_passed"] == 0, "in order of arrival"


def test_who_waits_behind_a_later_request_that_has_no_room_is_passed_over() -> None:
    queue = Queue()
    engine = engine_of(queue, Newest(), max_batch_requests=4, num_blocks=8)
    ask(engine, tokens=9, new=4)
    ask(engine, at_s=1.0, tokens=3)
    ask(engine, at_s=1.0, tokens=24)
    engine.run()
    assert queue.row(1)["wait_passed_s"] > 0.0, queue.row(1)
    assert queue.row(1)["wait_blocks_s"] == 0.0


def test_a_wait_behind_later_requests_is_one_of_those_that_were_passed_over() -> None:
    queue, lines = Queue(most_named=1), list[dict[str, Any]]()
    queue._write = lambda file, line: lines.append(dict(line))
    engine = engine_of(queue, Newest())
    for _ in range(3):
        ask(engine)
    ask(engine, at_s=2.5)
    engine.run()
    # In turn: 2, 1, 0 as the only one there, and 3 in a step of its own.
    assert [(line["request"], line["time_s"], line["passed"], line["num_passed"]) for line in lines] == [
        (2, 0.0, [0], 2), (1, 1.0, [0], 1), (0, 2.0, [], 0), (3, 3.0, [], 0),
    ]  # fmt: skip
    assert queue.row(0) == {
        "wait_rows_s": 0.0, "wait_blocks_s": 0.0, "wait_budget_s": 0.0, "wait_passed_s": 2.0, "passed_by": 2,
        "passed": 0,
    }  # fmt: skip
    assert (queue.row(1)["wait_passed_s"], queue.row(2)["passed"]) == (1.0, 2)
    assert queue.results()["num_passed"] == 3
    assert queue.results()["most_passed"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_the_parts_of_a_wait_sum_to_the_time_from_the_first_step_to_admission(seed: int) -> None:
    draw, queue, arrivals = random.Random(seed), Queue(), list[float]()
    engine = engine_of(queue, ShortestJob(max_wait_s=9.0), max_batch_requests=3, max_batch_tokens=24, num_blocks=24)
    for _ in range(60):
        arrivals.append(float(draw.randrange(40)))
        ask(engine, at_s=arrivals[-1], tokens=draw.randrange(1, 40), new=draw.randrange(1, 9))
    requests = list(engine.state.requests.values())
    engine.run()
    sums = [sum(queue.row(number)[f"wait_{cause}_s"] for cause in CAUSES) for number in range(60)]
    # Steps of one second begin at whole seconds, as requests arrive.
    assert sums == [(one.first_scheduled_s or 0.0) - at_s for one, at_s in zip(requests, arrivals, strict=True)]
    for number in range(60):
        row = queue.row(number)
        assert row["passed_by"] > 0 or row["wait_passed_s"] == 0.0 or engine.metrics.num_preemptions, row
    assert queue.results()["num_passed"] == sum(queue.row(number)["passed_by"] for number in range(60)) > 20


def test_a_request_that_is_cancelled_in_the_queue_waits_no_more() -> None:
    queue = Queue()
    engine = engine_of(queue)
    for _ in range(3):
        ask(engine, new=3)
    engine.step()
    engine.cancel(engine.state.requests[1])
    engine.run()
    assert queue.row(1)["wait_rows_s"] == 1.0
    assert queue.row(2)["wait_rows_s"] == 3.0


@pytest.mark.parametrize("event", ["admit", "load"])
def test_who_is_given_a_row_while_its_blocks_are_loaded_from_below_has_passed_older_requests(event: str) -> None:
    queue = Queue()
    for number in range(2):
        queue.noted(Note("arrive", 0, number))
    queue.noted(Note(event, 1, 1))
    assert (queue.row(0)["passed_by"], queue.row(1)["passed"]) == (1, 1)
