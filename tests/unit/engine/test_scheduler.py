"""The schedule in vLLM's order; plugins/framework_engines/tests/engines compares it with vLLM's own scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engines import assert_right, drive, fake_engine, noted_steps

from framework.engine.engine import Engine, Trial
from framework.engine.request import Request, Status
from framework.errors import OutOfBlocks
from framework.interfaces.observer import Note, Observer
from framework.sampling import Sampling


def engine_of(**options: Any) -> tuple[Engine, list[dict[int, int]]]:
    """An engine, and the tokens of each step by request."""
    parts = {"allocator": {"name": "prefix", "watermark": 0.0}, "block_size": 4}
    engine = fake_engine(**{**parts, **options})
    return engine, noted_steps(engine)


def submit(engine: Engine, *lengths: int, max_tokens: int = 3) -> list[Request]:
    return [
        engine.submit([number + 1] * length, Sampling(max_tokens=max_tokens, ignore_eos=True))
        for number, length in enumerate(lengths)
    ]


def test_the_budget_goes_to_running_rows_in_order_before_anyone_is_admitted() -> None:
    engine, steps = engine_of(max_batch_tokens=8)
    requests = submit(engine, 10, 10, 3)
    drive(engine)
    assert steps[:4] == [{0: 8}, {0: 2, 1: 6}, {0: 1, 1: 4, 2: 3}, {0: 1, 1: 1, 2: 1}], steps
    assert_right(requests)


def test_prompts_in_chunks_fill_the_budget() -> None:
    engine, steps = engine_of(chunk_size=2, max_batch_tokens=8, num_blocks=64)
    requests = submit(engine, *[8] * 8, max_tokens=1)
    drive(engine)
    assert [sum(step.values()) for step in steps] == [8] * 8, steps
    assert steps[0] == {0: 2, 1: 2, 2: 2, 3: 2}, "a row is charged its chunk, not all that is left of its prompt"
    assert_right(requests)


def test_the_last_row_of_a_step_computes_what_is_left_of_the_budget() -> None:
    engine, steps = engine_of(chunk_size=5, max_batch_tokens=8)
    requests = submit(engine, 12, 12, max_tokens=1)
    drive(engine)
    assert steps == [{0: 5, 1: 3}, {0: 5, 1: 3}, {0: 2, 1: 5}, {1: 1}], steps
    assert_right(requests)


def test_who_is_admitted_preempts_nobody() -> None:
    engine, _ = engine_of(num_blocks=32, max_batch_tokens=64)
    submit(engine, 6, max_tokens=8)
    engine.step()
    extend, asked = engine.allocator.extend, list[int]()

    def short(request: Any, num_tokens: int) -> Any:
        if request == 2 and not asked:
            asked.append(num_tokens)
            raise OutOfBlocks("as for a copy of a block that is hit in part")
        return extend(request, num_tokens)

    engine.allocator.extend = short  # type: ignore[method-assign]
    later = engine.submit([8] * 9, Sampling(max_tokens=2, ignore_eos=True))
    engine.step()
    assert (asked, later.status, engine.metrics.num_preemptions) == ([9], Status.WAITING, 0)
    assert engine.allocator.stats().num_requests == 1, "it holds nothing while it waits"
    drive(engine)
    assert_right([later])


def test_the_last_sample_gives_way_to_those_before_it() -> None:
    engine, _ = engine_of(num_blocks=5)
    sampled = engine.submit([3] * 4, Sampling(max_tokens=12, ignore_eos=True, n=2, temperature=1.0, seed=1))
    while not engine.metrics.num_preemptions:
        engine.step()
    assert [seq.stream for seq in engine.state.rows.sequences if seq is not None] == [0]
    drive(engine)
    assert_right([sampled])


def test_beams_wait_together_where_the_budget_is_short() -> None:
    engine, steps = engine_of(max_batch_tokens=8, num_blocks=64)
    beams = engine.submit([1, 2, 3], Sampling(max_tokens=6, beam_width=3))
    engine.step()
    urgent = engine.submit([9] * 19, Sampling(max_tokens=1, ignore_eos=True), priority=1)
    drive(engine)
    assert steps[1:4] == [{0: 1, 1: 5}, {1: 8}, {1: 6}], "the third leaves two tokens, for three beams"
    assert_right([beams, urgent])


def test_a_prompt_gets_blocks_chunk_by_chunk_but_is_admitted_only_if_all_of_it_fits() -> None:
    engine, steps = engine_of(max_batch_tokens=8, num_blocks=6)
    requests = submit(engine, 18, 12)  # five blocks, three blocks
    engine.step()
    assert engine.allocator.stats().used_blocks == 2
    engine.step()
    assert engine.allocator.stats().used_blocks == 4
    engine.step()
    assert steps == [{0: 8}, {0: 8}, {0: 2}], "the second has no room beside the first"
    drive(engine)
    assert_right(requests)


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine, _ = engine_of(num_blocks=4)
    requests = submit(engine, 7, 7, max_tokens=8)
    engine.step()
    urgent = engine.submit([9], Sampling(max_tokens=1, ignore_eos=True), priority=1)
    while not engine.metrics.num_preemptions:
        engine.step()
    assert [request.num_preemptions for request in requests] == [0, 1]
    assert urgent.status is Status.WAITING, "there was a block for it after the preemption"
    engine.step()
    assert urgent.status is Status.FINISHED
    drive(engine)
    assert_right([*requests, urgent])


def test_a_block_that_a_generated_token_fills_is_published_as_the_step_is_planned() -> None:
    published: list[int] = []
    engine, _ = engine_of(log=lambda event, **facts: event == "publish" and published.append(len(order)))
    order: list[str] = []
    forward = engine.executor.forward
    engine.executor.forward = lambda step, rows: (order.append("forward"), forward(step, rows))  # type: ignore
    submit(engine, 6, max_tokens=4)
    drive(engine)
    assert published == [0, 2], "tokens 7 and 8 are generated: the second block is full in the third step"


def test_requests_that_end_together_are_freed_in_order_of_admission() -> None:
    freed: list[int] = []
    engine, _ = engine_of(
        max_batch_requests=3, max_batch_tokens=64,
        log=lambda event, **facts: event == "finished" and freed.append(facts["request"]),
    )  # fmt: skip
    requests = [engine.submit([7, 8], Sampling(max_tokens=count, ignore_eos=True)) for count in (1, 4, 5, 3)]
    engine.step()
    engine.step()
    assert engine.state.rows.sequence(0).request.number == 3, "the last request is on the first row"
    drive(engine)
    assert freed == [0, 1, 3, 2], freed
    assert_right(requests)


@pytest.mark.parametrize(
    ("limits", "lengths", "expected"),
    [
        ({"max_batch_requests": 1}, (4, 4), ("rows", -1)),
        ({"num_blocks": 4}, (12, 12), ("blocks", 1)),
        ({"max_batch_tokens": 8}, (8, 4), ("budget", -1)),
    ],
)
def test_observers_learn_what_a_step_lacked_to_admit_one_more(
    limits: dict[str, Any], lengths: tuple[int, ...], expected: tuple[str, int]
) -> None:
    notes: list[Note] = []
    listener = Observer()
    listener.noted = notes.append  # type: ignore[method-assign]
    engine, _ = engine_of(**limits, trial=Trial(observers=(listener,)))
    submit(engine, *lengths)
    engine.step()
    (note,) = (note for note in notes if note.event == "queue")
    assert (note.facts["why"], note.request) == expected
    assert note.facts["time_s"] == 0.0
    engine.run()
    assert sum(note.event == "queue" for note in notes) == engine.state.step_number, "one a step"
