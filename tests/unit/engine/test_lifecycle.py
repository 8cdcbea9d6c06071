"""What goes wrong for one request goes wrong for that request: cancelled, preempted, poisoned, or with a bad plugin."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engines import FakeModel, assert_right, drive, expected, fake_engine, prompts

from framework.engine.request import Status
from framework.errors import OutOfBlocks
from framework.sampling import Sampling

MODEL = FakeModel()
KINDS = {
    "plain": Sampling(max_tokens=6),
    "samples": Sampling(max_tokens=6, n=3, temperature=1.0),
    "beams": Sampling(max_tokens=6, beam_width=3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_cancelled_before_it_arrives_a_request_never_enters_the_schedule(kind: str) -> None:
    log: list[str] = []
    engine = fake_engine(log=lambda event, **facts: log.append(event))
    request = engine.submit([1, 2], KINDS[kind], arrival_s=3.0)
    other = engine.submit([1, 3], KINDS["plain"])
    engine.step()
    engine.cancel(request)
    drive(engine)
    assert request.status is Status.CANCELLED
    assert log.count("arrive") == 1, log
    assert not engine.state.groups, engine.state.groups
    assert_right([other])


def test_a_cancelled_request_keeps_what_every_sample_generated() -> None:
    engine = fake_engine(eos_token_ids=tuple(range(0, 32, 3)))
    request = engine.submit(prompts(1)[0], Sampling(max_tokens=30, n=4, temperature=1.0))
    while not any(seq.done for seq in request.sequences):
        engine.step()
    wanted = expected(MODEL, request, tuple(range(0, 32, 3)))
    engine.cancel(request)
    assert len(request.completions) == 4, request.completions
    for stream, completion in enumerate(request.completions):
        assert completion.tokens == wanted[stream][: len(completion.tokens)], f"sample {stream}"
    assert {completion.finish_reason for completion in request.completions} == {"stop", "aborted"}


def test_higher_priority_is_admitted_first_and_lower_is_preempted_first() -> None:
    log: list[tuple[str, int]] = []
    engine = fake_engine(
        "naive", num_blocks=9, max_batch_requests=3, max_model_len=32,
        log=lambda event, **facts: log.append((event, facts.get("request", -1))),
    )  # fmt: skip
    sampling = Sampling(max_tokens=12)
    for priority in (0, 2, 1):
        engine.submit([priority] * 8, sampling, priority=priority)
    drive(engine)
    admitted = [request for event, request in log if event == "admit"]
    preempted = [request for event, request in log if event == "preempt"]
    assert admitted[:3] == [1, 2, 0], log
    assert preempted, "nothing was preempted"
    assert preempted[0] == 0, log
    assert 1 not in preempted, log


def test_a_preempted_request_comes_back_before_an_earlier_one_that_has_not_started() -> None:
    engine = fake_engine(max_batch_requests=1)
    late = engine.submit([1] * 5, KINDS["plain"], arrival_s=2.0)
    early = engine.submit([2] * 5, KINDS["plain"])
    for _ in range(4):
        engine.step()
    assert len(engine.state.waiting) == 1, "the late request has not arrived"
    engine.life.preempt(early.sequences[0])
    engine.step()
    assert early.sequences[0].row >= 0, "the late one took its place"
    drive(engine)
    assert_right([early, late])


def test_an_allocator_whose_fits_lies_ends_the_step() -> None:
    engine = fake_engine(num_blocks=30, block_size=2)

    def full(request: Any, tokens: Any, *rest: Any) -> None:
        raise OutOfBlocks("need 9 blocks, have none")

    engine.allocator.allocate = full  # type: ignore[method-assign]
    engine.submit([1] * 9, KINDS["plain"])
    with pytest.raises(OutOfBlocks, match="need 9 blocks"):
        engine.step()
    assert engine.interrupted
