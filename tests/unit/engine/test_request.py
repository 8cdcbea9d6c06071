"""What no engine can do is refused where it enters."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from fake_engines import drive, fake_engine, make_llm

from framework.engine.request import Status
from framework.engine.sizes import LengthWarning
from framework.errors import InvalidArgument
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.sampling import Sampling
from framework.types import Namespace


@pytest.mark.parametrize(
    "facts",
    [
        {"priority": 10**30}, {"priority": 2**31}, {"priority": True}, {"priority": "1"}, {"arrival_s": 10**400},
        {"arrival_s": float("nan")}, {"arrival_s": float("inf")}, {"arrival_s": "0"}, {"tenant": "\ud800"},
        {"tenant": 3}, {"session": 3}, {"namespace": "salt"}, {"namespace": Namespace(salt="\udfff")},
        {"session": b"x"}, {"key": 5}, {"category": 5}, {"hint": 5}, {"turn": "x"}, {"sampling": "x"},
    ],
)  # fmt: skip
def test_a_fact_of_another_type_or_out_of_range_is_refused_and_nothing_is_queued(facts: dict[str, Any]) -> None:
    engine = fake_engine()
    with pytest.raises(InvalidArgument, match=next(iter(facts))):
        engine.submit([1, 2], **{"sampling": Sampling(), **facts})
    assert engine.num_unfinished == 0
    assert not engine.interrupted


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        ({"num_blocks": 2}, "raise cache.num_blocks: the pool's 2 blocks hold 32 tokens"),
        ({"num_blocks": 64, "engine": EngineOptions(max_model_len=20)}, "raise engine.max_model_len"),
        (
            {"num_blocks": 2, "engine": EngineOptions(max_model_len=4000)},
            "raise cache.num_blocks: the pool's 2 blocks hold 32 tokens",
        ),
    ],
)
def test_a_request_that_is_too_long_learns_which_limit_stands_in_its_way(make: Any, advice: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LengthWarning)
        (request,) = make_llm("tiny", **make).generate("x" * 40)
    assert request.status is Status.REJECTED
    assert request.reason.endswith(f"shorten it or {advice}"), request.reason


def test_a_longest_sequence_that_cannot_be_is_said_when_the_engine_is_made() -> None:
    said = r"engine.max_model_len=4000 is more than can be: the longest sequence is 32 tokens; raise cache.num_blocks"
    with pytest.warns(LengthWarning, match=said):
        llm = LLM("tiny", cache=CacheOptions(num_blocks=2), engine=EngineOptions(max_model_len=4000))
    assert llm.max_model_len == 32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LLM("tiny", cache=CacheOptions(num_blocks=2), engine=EngineOptions(max_model_len=32)).max_model_len == 32


def test_another_engines_request_of_the_same_number_is_refused_and_harms_nobody() -> None:
    ours, theirs = fake_engine(), fake_engine()
    own, other = (engine.submit([1, 2, 3], Sampling(max_tokens=4)) for engine in (ours, theirs))
    for engine in (ours, theirs):
        engine.step()
    with pytest.raises(InvalidArgument, match=r"request 0 was not submitted to this engine"):
        ours.cancel(other)
    for engine, request in ((ours, own), (theirs, other)):
        drive(engine)
        assert request.status is Status.FINISHED, request.reason
    ours.cancel(other)  # it has ended: nothing to do
