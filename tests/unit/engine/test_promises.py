"""Rows of one step share what one of them computes in it, and recover when that is not computed after all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_engines import assert_right, drive, fake_engine

from framework.engine.engine import Engine
from framework.engine.request import Request, Status
from framework.errors import OutOfBlocks
from framework.sampling import Sampling

COMMON = [1 + at % 29 for at in range(23)]
SHARING = ("prefix", "prefix_cow", "radix")


def submit(engine: Engine, count: int = 4, **sampling: Any) -> list[Request]:
    wanted = Sampling(max_tokens=3, **sampling)
    return [engine.submit([*COMMON, number, number + 1], wanted) for number in range(count)]


@pytest.mark.parametrize(("share", "cached"), [(True, [0, 20, 20, 20]), (False, [0] * 4)])
@pytest.mark.parametrize("scheduling", ["admit_first", "running_first"])
@pytest.mark.parametrize("allocator", SHARING)
def test_requests_admitted_together_share_their_common_prefix_unless_that_is_off(
    allocator: str, scheduling: str, share: bool, cached: list[int]
) -> None:
    options = {"share_within_step": share, "scheduling": scheduling, "max_batch_tokens": 128}
    engine = fake_engine(allocator=allocator, num_blocks=64, block_size=4, **options)
    requests = submit(engine)
    engine.step()
    assert [request.num_cached_tokens for request in requests] == cached
    drive(engine)
    assert_right(requests)


def test_a_chunk_promises_no_more_than_it_computes() -> None:
    engine = fake_engine(num_blocks=64, block_size=4, chunk_size=8)
    requests = submit(engine, 3)
    engine.step()
    assert [request.num_cached_tokens for request in requests] == [0, 8, 16], "each goes on where the one before ends"
    drive(engine)
    assert_right(requests)


def test_a_running_prompt_shares_the_chunk_it_computes_with_who_arrives() -> None:
    engine = fake_engine(num_blocks=64, block_size=4, chunk_size=8)
    first = submit(engine, 1)
    engine.step()
    later = submit(engine, 1)
    engine.step()
    assert later[0].num_cached_tokens == 16, "8 tokens of the step before and 8 of this one"
    drive(engine)
    assert_right(first + later)


def before_room_is_made(engine: Engine, act: Callable[[], None]) -> None:
    """`act` once the first step is planned, before its rows get room."""
    made = engine.scheduler._make_room

    def first(num_new: Any) -> Any:
        if engine.state.step_number == 1:
            act()
            num_new[[row for row, seq in enumerate(engine.state.rows.sequences) if seq is None]] = 0
        return made(num_new)

    engine.scheduler._make_room = first  # type: ignore[method-assign]


@pytest.mark.parametrize("allocator", SHARING)
@pytest.mark.parametrize("failed", range(4))
def test_a_request_that_fails_before_the_forward_pass_harms_nobody_else(allocator: str, failed: int) -> None:
    engine = fake_engine(allocator=allocator, num_blocks=64, block_size=4)
    requests = submit(engine)
    before_room_is_made(engine, lambda: engine.life.fail(requests[failed].sequences[0], OutOfBlocks("no room")))
    engine.step()
    engine.allocator.check()
    drive(engine)
    assert requests[failed].status is Status.FAILED
    assert_right([request for request in requests if request.number != failed])


def test_who_relies_on_a_row_that_is_preempted_in_the_same_step_is_preempted_too() -> None:
    engine = fake_engine(num_blocks=64, block_size=4)
    requests = submit(engine)
    before_room_is_made(engine, lambda: engine.life.preempt(requests[0].sequences[0]))
    engine.step()
    assert [request.num_preemptions for request in requests] == [1, 1, 1, 1]
    engine.allocator.check()
    drive(engine)
    assert_right(requests)


def test_a_chunk_cut_short_after_it_was_promised_is_withdrawn() -> None:
    engine = fake_engine(num_blocks=64, block_size=4)
    requests = submit(engine)
    scheduler, planned = engine.scheduler, engine.scheduler._plan

    def cut(*given: Any) -> Any:
        num_new, decodes_only = planned(*given)
        if engine.state.step_number == 1:
            num_new[requests[0].sequences[0].row] = 5
        return num_new, decodes_only

    scheduler._plan = cut
    engine.step()
    assert [request.num_preemptions for request in requests] == [0, 1, 1, 1]
    drive(engine)
    assert_right(requests)


def test_a_request_of_higher_priority_cuts_no_promised_chunk() -> None:
    engine = fake_engine(num_blocks=64, block_size=4, max_batch_tokens=40)
    low = submit(engine, 1)
    high = engine.submit([*COMMON, 30, 31, *range(20)], Sampling(max_tokens=2), priority=5)
    late = submit(engine, 1)
    drive(engine)
    assert_right([*low, high, *late])
