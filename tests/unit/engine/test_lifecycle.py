"""What goes wrong for one request goes wrong for that request: cancelled, preempted, poisoned, or with a bad plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_engines import ALLOCATORS, FakeModel, drive, expected, fake_engine, named, prompts, slow_beams, tokens_of

from framework.engine.engine import Engine
from framework.engine.request import Request, Status
from framework.errors import OutOfBlocks
from framework.sampling import Sampling
from framework.testing import adversarial

MODEL = FakeModel()
KINDS = {
    "plain": Sampling(max_tokens=6),
    "samples": Sampling(max_tokens=6, n=3, temperature=1.0),
    "beams": Sampling(max_tokens=6, beam_width=3),
}


def assert_right(requests: list[Request], model: FakeModel = MODEL) -> None:
    for request in requests:
        assert request.status is Status.FINISHED, f"request {request.number}: {request.status} {request.reason}"
        wanted = (
            slow_beams(model, request.prompt.tolist(), request.sampling) if request.group else expected(model, request)
        )
        assert tokens_of(request) == wanted, f"request {request.number}"


def ended_once(engine: Engine) -> None:
    metrics = engine.metrics
    assert sum(metrics.statuses.values()) == metrics.num_submitted, f"{metrics.statuses} of {metrics.num_submitted}"
    lengths = engine.state.rows.length
    assert not lengths.any(), f"rows that nobody uses are {lengths} tokens long"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("allocator", ["prefix_cow", "naive", {"name": "contiguous", "reserve": "oracle"}], ids=named)
def test_cancelled_at_any_step_a_request_gives_all_back_and_the_others_go_on(allocator: Any, kind: str) -> None:
    batch = prompts(3)
    for at in range(12):
        engine = fake_engine(allocator, num_blocks=60, max_batch_tokens=16, max_model_len=32)
        victim = engine.submit(batch[0], KINDS[kind])
        others = [engine.submit(prompt, KINDS["plain"]) for prompt in batch[1:]]
        for _ in range(at):
            engine.step()
        was_done = victim.status.ended
        engine.cancel(victim)
        engine.cancel(victim)
        drive(engine)
        assert victim.status is (Status.FINISHED if was_done else Status.CANCELLED), f"at step {at}: {victim.status}"
        assert_right(others)
        ended_once(engine)
    assert was_done, "no loop reached the end"


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
    engine = fake_engine(eos_token_ids=range(0, 32, 3))
    request = engine.submit(prompts(1)[0], Sampling(max_tokens=30, n=4, temperature=1.0))
    while not any(seq.done for seq in request.sequences):
        engine.step()
    wanted = expected(MODEL, request, tuple(range(0, 32, 3)))
    engine.cancel(request)
    assert len(request.completions) == 4, request.completions
    for stream, completion in enumerate(request.completions):
        assert completion.tokens == wanted[stream][: len(completion.tokens)], f"sample {stream}"
    assert {completion.finish_reason for completion in request.completions} == {"stop", "aborted"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("allocator", ALLOCATORS, ids=named)
def test_preempted_at_any_step_a_request_ends_as_if_it_never_was(allocator: Any, kind: str) -> None:
    batch = prompts(3)
    for at in range(9):
        engine = fake_engine(allocator, num_blocks=200, max_batch_tokens=16, max_model_len=32)
        requests = [engine.submit(prompt, KINDS[kind] if i == 1 else KINDS["plain"]) for i, prompt in enumerate(batch)]
        for _ in range(at):
            engine.step()
        for seq in list(requests[1].sequences):
            if seq.row >= 0:
                engine.life.preempt(seq)
        drive(engine)
        assert_right(requests)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_same_victim_preempted_at_every_step_ends_when_left_alone(which: int) -> None:
    engine = fake_engine(num_blocks=40)
    requests = [engine.submit(prompt, KINDS["plain"]) for prompt in prompts(3)]
    for _ in range(50):
        victim = requests[which].sequences[0]
        if victim.row >= 0 and engine.num_unfinished > 1:
            engine.life.preempt(victim)
        if engine.num_unfinished:
            engine.step()
    drive(engine)
    assert_right(requests)


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


def test_a_preempted_request_comes_back_before_one_that_has_not_started() -> None:
    log: list[tuple[str, int]] = []
    engine = fake_engine(
        "naive", num_blocks=8, max_model_len=32, max_batch_requests=2,
        log=lambda event, **facts: log.append((event, facts.get("request", -1))),
    )  # fmt: skip
    requests = [engine.submit([i] * 8, Sampling(max_tokens=14)) for i in range(4)]
    drive(engine)
    assert_right(requests)
    first = log.index(("preempt", 1))
    again = log.index(("admit", 1), first)
    assert ("admit", 2) not in log[first:again], log


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


@pytest.mark.parametrize("kind", KINDS)
def test_logits_that_are_not_finite_fail_their_request_alone(kind: str) -> None:
    model = FakeModel(vocab_size=32, nan_after=(31,))
    engine = fake_engine(model=model)
    bad = engine.submit([1, 2, 31], KINDS[kind])
    good = [engine.submit([i, 2, 3], KINDS[kind]) for i in range(2)]
    drive(engine)
    assert bad.status is Status.FAILED, bad
    assert "not finite at step 1" in bad.reason, bad.reason
    assert {request.status for request in good} <= {Status.FINISHED, Status.FAILED}
    assert_right([request for request in good if all(31 not in tokens for tokens in tokens_of(request))])
    ended_once(engine)


def run_with(**parts: Any) -> tuple[Engine, list[Request]]:
    engine = fake_engine(num_blocks=14, block_size=2, max_model_len=32, **parts)
    requests = [engine.submit(prompt, KINDS["plain"]) for prompt in prompts(6, shared=4)]
    for late in range(3):
        requests.append(engine.submit(prompts(1, shared=4)[0], KINDS["samples"], arrival_s=20.0 + late))
    drive(engine)
    ended_once(engine)
    return engine, requests


def assert_contained(requests: list[Request], plugin: str) -> None:
    """Whoever did not finish names the plugin; whoever did is right."""
    failed = [request for request in requests if request.status is Status.FAILED]
    for request in failed:
        assert plugin in request.reason, request.reason
    assert_right([request for request in requests if request.status is Status.FINISHED])
    assert {request.status for request in requests} <= {Status.FINISHED, Status.FAILED}


@pytest.mark.parametrize("after", [0, 1, 3, 8])
@pytest.mark.parametrize("hook", ["admit", "hit", "pin", "release", "evicted"])
def test_a_policy_that_raises_fails_requests_by_its_name_and_loses_no_block(hook: str, after: int) -> None:
    engine, requests = run_with(eviction=adversarial.RaisesInHook(hook, after))
    assert_contained(requests, "RaisesInHook")
    assert any(request.status is Status.FAILED for request in requests) or after >= 3, "it never raised"
    assert engine.allocator.stats().used_blocks == 0


@pytest.mark.parametrize("policy", [*adversarial.bad_victims()], ids=lambda policy: type(policy).__name__)
def test_a_policy_with_a_bad_victim_fails_requests_by_its_name(policy: Any) -> None:
    _, requests = run_with(eviction=policy)
    assert_contained(requests, type(policy).__name__)


@pytest.mark.parametrize("scheme", [*adversarial.bad_names()], ids=lambda scheme: type(scheme).__name__)
def test_a_scheme_with_bad_names_fails_requests_by_its_name(scheme: Any) -> None:
    _, requests = run_with(hash=scheme)
    assert_contained(requests, type(scheme).__name__)


@pytest.mark.parametrize("scheme", [adversarial.Constant, adversarial.Truncated, adversarial.Fickle])
def test_a_scheme_that_collides_changes_no_token(scheme: Callable[[], Any]) -> None:
    _, requests = run_with(hash=scheme())
    assert_right(requests)


METHODS = ("lookup", "fits", "allocate", "extend", "commit", "fork", "free")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [0, 2, 7])
@pytest.mark.parametrize("kind", ["plain", "samples"])
def test_an_allocator_that_raises_fails_one_request_a_time_by_its_name(method: str, after: int, kind: str) -> None:
    """Also an error that is none of ours: the first such call does not happen, all later ones do."""
    engine = fake_engine(num_blocks=14, block_size=2, max_model_len=32)
    real, calls = getattr(engine.allocator, method), iter(range(10**6))

    def breaks(*args: Any) -> Any:
        if next(calls) == after:
            if method == "free":
                real(*args)
            raise ZeroDivisionError("on purpose")
        return real(*args)

    setattr(engine.allocator, method, breaks)
    requests = [engine.submit(prompt, KINDS[kind]) for prompt in prompts(5, shared=4)]
    drive(engine)
    ended_once(engine)
    assert_contained(requests, "PrefixCowAllocator")
    counted, kept = engine.metrics.num_output_tokens, sum(request.num_output_tokens for request in requests)
    assert counted == kept, f"{counted} tokens counted, {kept} in completions"
    failed = [request for request in requests if request.status is Status.FAILED]
    assert len(failed) == (next(calls) > after), [request.reason for request in requests]
    for request in failed:
        assert method in request.reason, request.reason


def test_an_allocator_that_gives_less_room_than_asked_is_named() -> None:
    engine = fake_engine(num_blocks=30, block_size=2)
    table = engine.allocator.table
    engine.allocator.table = lambda request: table(request)[:2]  # type: ignore[method-assign]
    request = engine.submit([1] * 9, KINDS["plain"])
    drive(engine)
    assert request.status is Status.FAILED, request.status
    assert "PrefixCowAllocator" in request.reason, request.reason


@pytest.mark.parametrize("block", [0, -1, 31, 10**6])
def test_an_allocator_that_names_a_block_outside_the_pool_is_named(block: int) -> None:
    engine = fake_engine(num_blocks=30, block_size=2)
    table = engine.allocator.table

    def wrong(request: Any) -> Any:
        ids = table(request).copy()
        ids[-1] = block
        return ids

    engine.allocator.table = wrong  # type: ignore[method-assign]
    request = engine.submit([1] * 9, KINDS["plain"])
    drive(engine)
    assert request.status is Status.FAILED, request.status
    assert "PrefixCowAllocator" in request.reason, request.reason
    assert str(block) in request.reason, request.reason


def test_an_allocator_whose_fits_lies_fails_the_request_and_not_the_engine() -> None:
    engine = fake_engine(num_blocks=30, block_size=2)
    engine.allocator.fits = lambda *args: True  # type: ignore[method-assign]
    real = engine.allocator.allocate

    def full(request: Any, tokens: Any, *rest: Any) -> None:
        if len(tokens) > 8:
            raise OutOfBlocks("need 9 blocks, have none")
        real(request, tokens, *rest)

    engine.allocator.allocate = full  # type: ignore[method-assign]
    requests = [engine.submit([1] * length, KINDS["plain"]) for length in (9, 2)]
    drive(engine)
    assert requests[0].status is Status.FAILED
    assert_right(requests[1:])
