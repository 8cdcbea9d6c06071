"""An engine that was interrupted at any line of a step never gives wrong tokens and never runs for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fake_engines import FakeModel, expected, fake_engine, make_llm, prompts, tokens_of

import framework
import framework_builtin
from framework.engine.engine import Engine
from framework.engine.request import Request, Status
from framework.errors import EngineInterrupted, RankError
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework_builtin.eviction.lru import Lru

OURS = tuple(str(Path(str(package.__file__)).parent) for package in (framework, framework_builtin))
ALLOCATORS = ["prefix_cow", "radix", "contiguous"]


@contextmanager
def interrupted_at_line(number: int) -> Iterator[dict[str, int]]:
    """KeyboardInterrupt at the `number`th line of this package's code that runs within; `lines` counts them."""
    count = {"lines": 0}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            count["lines"] += 1
            if count["lines"] == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def small_engine(allocator: str) -> Engine:
    return fake_engine(allocator, num_blocks=20, max_batch_requests=3, chunk_size=6, preempt_every=4)


def new_allocator(allocator: str) -> Any:
    return build_allocator(allocator, "lru", "xxh64", num_blocks=20, block_size=4, max_model_len=64)


def serve(engine: Engine, limit: int = 400) -> list[Any]:
    asked = [Sampling(max_tokens=6), Sampling(max_tokens=4, n=2, temperature=1.0), Sampling(max_tokens=5)]
    requests = [engine.submit(prompt, one) for prompt, one in zip(prompts(3), asked, strict=True)]
    for _ in range(limit):
        if not engine.num_unfinished:
            return requests
        engine.step()
    raise AssertionError("the engine never ends")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_after_an_interrupt_at_any_line_the_engine_is_whole_or_refuses_until_it_is_reset(allocator: str) -> None:
    engine = small_engine(allocator)
    with interrupted_at_line(0) as count:
        serve(engine)
    refused = 0
    for number in range(1, count["lines"], 97):
        engine = small_engine(allocator)
        with pytest.raises(KeyboardInterrupt), interrupted_at_line(number):
            serve(engine)
        if engine.interrupted:
            refused += 1
            with pytest.raises(EngineInterrupted, match="until it is reset"):
                serve(engine)
            with pytest.raises(EngineInterrupted):
                engine.step()
            old = list(engine.state.requests.values())
            engine.reset(new_allocator(allocator))
            assert all(request.status is Status.FAILED for request in old), number
        for request in serve(engine):
            assert tokens_of(request) == expected(FakeModel(), request), f"line {number}: {request.reason}"
        engine.check()
    assert refused > 8, refused


def greedy(llm: LLM) -> list[list[int]]:
    texts = ["the quick brown fox", "the quick brown dog jumps", "a"]
    return [r.completions[0].tokens for r in llm.generate(texts, Sampling(max_tokens=6, ignore_eos=True))]


def test_generate_after_an_interrupt_at_any_line_gives_the_right_tokens() -> None:
    make = {"num_blocks": 24, "block_size": 4, "engine": EngineOptions(max_batch_requests=2, chunk_size=8)}
    llm = make_llm("tiny", **make)
    wanted = greedy(llm)
    llm.reset()
    with interrupted_at_line(0) as count:
        greedy(llm)
    for number in range(1, count["lines"], count["lines"] // 20):
        llm.reset()
        with pytest.raises(KeyboardInterrupt), interrupted_at_line(number):
            greedy(llm)
        assert greedy(llm) == wanted, f"line {number}"
        assert llm.stats()["unfinished"] == 0
        llm.engine.check()


def test_an_llm_with_an_object_of_the_caller_s_own_refuses_instead() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=24), eviction=Lru())
    wanted = greedy(llm)
    llm.reset()
    assert greedy(llm) == wanted, "an orderly reset keeps the object"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.executor, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("abc")
    with pytest.raises(EngineInterrupted, match="eviction is an object of your own, which may be half changed"):
        greedy(llm)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_requests_of_a_call_left_between_steps_are_cancelled() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=24))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "drain", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("abc")
    assert not llm.engine.interrupted
    assert llm.stats()["unfinished"] == 0


def test_a_step_that_comes_late_lands_nowhere() -> None:
    engine = small_engine("prefix_cow")
    forward = engine.executor.forward

    def slow(step: Any, rows: Any) -> None:
        forward(step, rows)
        engine.reset(new_allocator("prefix_cow"))  # as another thread would, which gave up waiting

    engine.executor.forward = slow  # type: ignore[method-assign]
    request = engine.submit([1, 2, 3], Sampling(max_tokens=3))
    with pytest.raises(EngineInterrupted, match="reset while this step ran"):
        engine.step()
    engine.executor.forward = forward  # type: ignore[method-assign]
    assert (request.status, request.completions) == (Status.FAILED, [])
    engine.reset(new_allocator("prefix_cow"))
    for request in serve(engine):
        assert tokens_of(request) == expected(FakeModel(), request)


def test_who_reads_the_state_from_another_thread_gets_it_between_steps_or_is_refused() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=24))
    engine, seen, ends = llm.engine, [0, 0], threading.Event()
    faults: list[BaseException] = []

    def read() -> None:
        while not ends.is_set():
            for number, ask in enumerate((llm.stats, engine.check)):
                try:
                    found = ask()
                    if found is not None:
                        assert found["free_blocks"] + found["cached_blocks"] + found["used_blocks"] == 24, found
                    seen[number] += 1
                except EngineInterrupted as error:
                    if "is in a step" not in str(error):
                        faults.append(error)
                except BaseException as error:
                    faults.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    prompts = [[number, *range(40)] for number in range(12)]
    for _ in range(5):
        llm.generate(prompts, Sampling(max_tokens=8, ignore_eos=True))
    ends.set()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]
    assert min(seen) > 0, seen


def run_while(engine: Engine, act: Callable[[], None]) -> Request:
    """The one request of a run in whose step `act` is called twice: by the engine's thread and by another."""
    forward = engine.executor.forward

    def slow(step: Any, rows: Any) -> None:
        act()
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        forward(step, rows)

    engine.executor.forward = slow  # type: ignore[method-assign]
    request = engine.submit([1, 2, 3], Sampling(max_tokens=1))
    engine.run()
    return request


def test_a_state_half_changed_is_shown_to_nobody() -> None:
    engine, refused = small_engine("prefix_cow"), list[str]()

    def look() -> None:
        with pytest.raises(EngineInterrupted, match="is in a step") as found, engine.between_steps():
            pytest.fail("it was let in")
        with pytest.raises(EngineInterrupted, match="is in a step"):
            engine.check()
        refused.append(str(found.value))

    request = run_while(engine, look)
    assert (request.status, len(refused)) == (Status.FINISHED, 2), request.reason
    engine.check()


def test_an_engine_in_a_step_refuses_another_thread_and_its_own_callbacks() -> None:
    engine = small_engine("prefix_cow")
    caught: list[Exception] = []

    def intrude() -> None:
        try:
            engine.submit([1], Sampling())
        except EngineInterrupted as error:
            caught.append(error)

    request = run_while(engine, intrude)
    assert request.status is Status.FINISHED, request.reason
    assert ["is in a step" in str(error) for error in caught] == [True, True], caught


def test_ranks_that_were_left_in_a_step_are_a_clear_refusal() -> None:
    with LLM("tiny", cache=CacheOptions(num_blocks=24), engine=EngineOptions(tensor_parallel_size=2)) as llm:
        llm.executor._eager = interrupt  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            llm.generate("abc")
        with pytest.raises(RankError, match="load it again"):
            llm.generate("abc")
