"""Rows of one step share what one of them computes in it; nothing stays to be found of a step that failed."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engines import assert_right, drive, fake_engine

from framework.engine.engine import Engine
from framework.engine.executors.base import Step
from framework.engine.request import Request
from framework.errors import EngineInterrupted
from framework.sampling import Sampling

COMMON = [1 + at % 29 for at in range(23)]
SHARING = ("prefix", "prefix_cow", "radix")


def submit(engine: Engine, count: int = 4, **sampling: Any) -> list[Request]:
    wanted = Sampling(max_tokens=3, **sampling)
    return [engine.submit([*COMMON, number, number + 1], wanted) for number in range(count)]


@pytest.mark.parametrize("allocator", SHARING)
def test_requests_admitted_together_share_their_common_prefix(allocator: str) -> None:
    engine = fake_engine(allocator=allocator, num_blocks=64, block_size=4, max_batch_tokens=128)
    requests = submit(engine)
    engine.step()
    assert [request.num_cached_tokens for request in requests] == [0, 20, 20, 20]
    drive(engine)
    assert_right(requests)


def test_no_more_of_a_chunk_is_shared_than_is_computed() -> None:
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


def test_what_a_step_published_that_the_backend_failed_is_read_by_nobody() -> None:
    def fail(step: Step) -> None:
        raise RuntimeError("the backend failed")

    engine = fake_engine(allocator="prefix", num_blocks=64, block_size=4)
    engine.executor._before = fail
    submit(engine)
    with pytest.raises(RuntimeError, match="the backend failed"):
        engine.step()
    assert engine.allocator.ahead, "it shared what it did not compute"
    with pytest.raises(EngineInterrupted):
        engine.step()
    with pytest.raises(EngineInterrupted):
        submit(engine)


def test_a_prompt_of_higher_priority_shares_and_is_shared() -> None:
    engine = fake_engine(num_blocks=64, block_size=4, max_batch_tokens=40)
    low = submit(engine, 1)
    high = engine.submit([*COMMON, 30, 31, *range(20)], Sampling(max_tokens=2), priority=5)
    late = submit(engine, 1)
    drive(engine)
    assert_right([*low, high, *late])
