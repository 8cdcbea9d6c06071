"""What a request gets back depends on the request alone: not on chunks, batches, pools or other requests."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engines import (
    ALLOCATORS,
    FakeModel,
    assert_right,
    drive,
    fake_engine,
    named,
    prompts,
    tokens_of,
)

from framework.engine.request import Status
from framework.errors import InvalidTokens
from framework.sampling import Sampling

MODEL = FakeModel()
GREEDY = Sampling(max_tokens=7)


@pytest.mark.parametrize("allocator", ALLOCATORS, ids=named)
def test_a_request_larger_than_the_pool_is_rejected_with_numbers_and_alone(allocator: Any) -> None:
    engine = fake_engine(allocator, num_blocks=6)
    small, large, other = (engine.submit(prompt, GREEDY) for prompt in ([1] * 9, [2] * 18, [3] * 9))
    drive(engine)
    assert large.status is Status.REJECTED, large.status
    assert all(number in large.reason for number in ("25", "6", "4")), large.reason
    assert_right([small, other])


@pytest.mark.parametrize("bad", [[], [32], [5, 400]], ids=["empty", "one past", "far past"])
def test_a_prompt_that_is_none_is_rejected_alone(bad: list[int]) -> None:
    engine = fake_engine()
    requests = [engine.submit(prompt, GREEDY) for prompt in ([1, 2], bad, [3])]
    drive(engine)
    assert requests[1].status is Status.REJECTED, requests[1]
    assert requests[1].reason
    assert_right([requests[0], requests[2]])


@pytest.mark.parametrize("bad", [[-1], [0.5], [True], [[1]], [2**31]])
def test_tokens_that_are_no_ids_are_refused_and_leave_no_trace(bad: Any) -> None:
    engine = fake_engine()
    with pytest.raises(InvalidTokens):
        engine.submit(bad, GREEDY)
    good = engine.submit([1], GREEDY)
    drive(engine)
    assert_right([good])
    assert engine.metrics.num_submitted == 1, engine.metrics.num_submitted


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 4])
def test_prompts_at_and_around_a_block_boundary_twice_cold_and_warm(length: int, max_tokens: int) -> None:
    engine = fake_engine("prefix_cow", eos_token_ids=())
    prompt = prompts(1, shared=length - 1, unique=1)[0]
    requests = []
    for _ in range(2):
        requests.append(engine.submit(prompt, Sampling(max_tokens=max_tokens)))
        drive(engine)
    assert_right(requests)
    assert requests[1].num_cached_tokens == (length - 1) // 4 * 4, requests[1].num_cached_tokens


def test_an_end_of_text_as_first_token_ends_it_and_is_kept() -> None:
    prompt = prompts(1)[0]
    first = MODEL.generate(prompt, 1)[0]
    engine = fake_engine(eos_token_ids=[first])
    ended = engine.submit(prompt, GREEDY)
    ignored = engine.submit(prompt, Sampling(max_tokens=7, ignore_eos=True))
    drive(engine)
    assert [(c.tokens, c.finish_reason) for c in ended.completions] == [([first], "stop")]
    assert tokens_of(ignored) == [MODEL.generate(prompt, 7)]
    assert ignored.completions[0].finish_reason == "length"


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    prompt = prompts(1)[0]
    free = MODEL.generate(prompt, 3)
    request = (engine := fake_engine()).submit(prompt, Sampling(max_tokens=3, stop_token_ids=(free[2],)))
    drive(engine)
    assert request.completions[0].finish_reason == "stop", request.completions


def test_two_requests_without_a_seed_draw_from_different_streams() -> None:
    engine = fake_engine()
    requests = [engine.submit([1, 2, 3], Sampling(max_tokens=7, temperature=0.9)) for _ in range(2)]
    drive(engine)
    assert tokens_of(requests[0]) != tokens_of(requests[1])


@pytest.mark.parametrize(("num_blocks", "beam_prompt"), [(2, 3), (5, 5)])
def test_beams_that_outgrow_the_pool_fail_without_whoever_waits_behind_them(num_blocks: int, beam_prompt: int) -> None:
    engine = fake_engine("naive", num_blocks=num_blocks, block_size=3, max_batch_requests=3, max_batch_tokens=3)
    beams = engine.submit([0] * beam_prompt, Sampling(max_tokens=3, beam_width=2))
    plain = engine.submit([0] * 3, Sampling(max_tokens=1))
    drive(engine)
    assert_right([plain])
    assert beams.status is Status.FAILED, beams.status


def test_a_vocabulary_smaller_than_the_beam_still_searches() -> None:
    model = FakeModel(vocab_size=2)
    engine = fake_engine(model=model, max_batch_requests=4)
    sampling = Sampling(max_tokens=5, beam_width=4)
    request = engine.submit([0, 1, 1], sampling)
    drive(engine)
    assert_right([request], model)
