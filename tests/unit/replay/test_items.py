"""A full replay tells policies the future, and submits what a trace or a recording holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engines import make_engine

from framework.engine.engine import Engine
from framework.engine.executors.replay import OUTPUT_BASE, ReplayExecutor, constant_step
from framework.errors import ConfigError
from framework.interfaces.workload import WorkloadRequest, name_blocks
from framework.registry.components import build_allocator
from framework.replay.items import Foresight, feed, submit, trace_items
from framework.sampling import Sampling
from framework_builtin.eviction.belady import Belady
from framework_workloads.trace import open_trace
from framework_workloads.trace.recording import read_recording


def requests_of(ids: list[list[int]], block_tokens: int = 4, gap_s: float = 100.0) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(
            arrival_s=gap_s * i,
            input_tokens=len(path) * block_tokens + 1,
            output_tokens=3,
            block_ids=np.array(path, dtype=np.int64),
            block_tokens=block_tokens,
        )
        for i, path in enumerate(ids)
    ]


def engine_of(
    eviction: Any, num_blocks: int, block_size: int, allocator: str = "prefix", outputs: Any = None, **options: Any
) -> Engine:
    built = build_allocator(
        allocator, eviction, "sha256", num_blocks=num_blocks, block_size=block_size, max_model_len=200
    )
    return make_engine(built, ReplayExecutor(constant_step(0.025), outputs=outputs), max_model_len=200, **options)


def drain(engine: Engine, requests: list[WorkloadRequest]) -> Engine:
    for _ in feed(engine, trace_items(requests)):
        engine.allocator.check()
    engine.check()
    return engine


@pytest.mark.parametrize("block_size", [2, 4, 8])
def test_next_uses_are_those_of_the_trace_at_any_block_size(block_size: int) -> None:
    requests = requests_of([[1, 2, 3, 4], [1, 2], [5, 6], [1, 2, 3, 4]])
    future = Foresight(engine_of(Belady(), 50, block_size).allocator, requests, max_len=200)
    inf = float("inf")
    expected = {2: [2, 2, 2, 2, 4, 4, 4, 4], 4: [2, 2, 4, 4], 8: [2, 4]}[block_size]
    assert future.next_uses(0).tolist() == expected
    assert future.next_uses(2).tolist() == [inf] * (8 // block_size)
    assert future.next_uses(3).tolist() == [inf] * (16 // block_size)
    assert future.next_uses(1).tolist() == [inf] * (8 // block_size), "request 3 has released them: nothing follows"


def spoken(turns: list[tuple[list[int], list[int] | None]], block_tokens: int = 4) -> list[WorkloadRequest]:
    """Token-level requests: (prompt, recorded output or None)."""
    return [
        WorkloadRequest(
            arrival_s=100.0 * i,
            prompt=np.array(prompt, dtype=np.int32),
            output_tokens=len(output or [0]),
            block_ids=name_blocks(np.array(prompt), block_tokens),
            block_tokens=block_tokens,
            output=None if output is None else np.array(output, dtype=np.int32),
        )
        for i, (prompt, output) in enumerate(turns)
    ]


def test_a_later_prompt_requests_the_blocks_of_a_recorded_output() -> None:
    text, inf = list(range(18)), float("inf")
    turns = [(text[:6], text[6:14]), ([90, 91], text[:6]), (text, [7]), (text[:9], text[9:18])]
    future = Foresight(engine_of(Belady(), 50, 4).allocator, spoken(turns), max_len=200)
    assert future.next_uses(0).tolist() == [3, 3, 3], "two blocks and a half: prompt, both, output"
    assert future.next_uses(1).tolist() == [inf, inf], "equal tokens after another start are another content"
    assert future.next_uses(2).tolist() == [4, 4, inf, inf], "the last request generates the rest, it does not ask"
    unknown = Foresight(engine_of(Belady(), 50, 4).allocator, spoken([(text[:6], None), (text, [7])]), max_len=200)
    assert unknown.next_uses(0).tolist() == [2]


def test_belady_keeps_the_answer_that_the_next_turn_repeats() -> None:
    said, other, filler, hits = list(range(13)), list(range(100, 113)), list(range(200, 213)), {}
    turns = [(said[:4], said[4:]), (other, [1]), (filler, [1]), ([*said, 50, 51], [1]), (other, [1])]
    for knows in (True, False):
        requests = spoken(turns)
        outputs = {(number, 0): request.output for number, request in enumerate(requests)}
        engine = engine_of(Belady(), 7, 4, outputs=outputs)
        known = requests if knows else [replace(request, output=None) for request in requests]
        Foresight(engine.allocator, known, max_len=200).attach(engine)
        hits[knows] = drain(engine, requests[:4]).metrics.hit_blocks
    assert hits == {True: 3, False: 1}, "who does not know frees the answer for what comes back later"


def test_a_preempted_request_finds_its_blocks_near() -> None:
    seen: list[tuple[int, list[float], bool]] = []
    requests = requests_of([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3]], gap_s=0.0)
    engine = engine_of(Belady(), 30, 4, preempt_every=3)
    future = Foresight(engine.allocator, requests, max_len=200)

    def foresee(seq: Any, returning: bool) -> list[float]:
        uses = future(seq, returning)
        seen.append((seq.request.number, uses, returning))
        return uses

    engine.state.foresee = foresee
    drain(engine, requests)
    assert engine.metrics.num_preemptions > 0
    returning = [(request, uses) for request, uses, back in seen if back]
    assert returning
    for number, uses in returning:
        assert set(uses) == {number + 1.0}, "its own, nearer than any to come"
        assert len(uses) in (3, 4), "its full blocks"
    assert {number: uses for number, uses, back in seen if not back}[0] == [4.0] * 3


def replayed(requests: list[WorkloadRequest], outputs: dict[tuple[int, int], Any]) -> list[list[list[int]]]:
    """The tokens of each sample of each request."""
    engine = engine_of("lru", 80, 4, "prefix_cow", outputs=outputs)
    found = [submit(engine, request) for request in requests]
    engine.run()
    return [[completion.tokens for completion in request.completions] for request in found]


def test_of_a_trace_s_samples_the_first_says_what_was_recorded_and_the_others_what_nobody_else_does() -> None:
    first, second, beams = spoken([([1, 2, 3], [7, 8, 9]), ([1, 2, 3], [7, 8, 9]), ([4, 5], [6, 6])])
    first, second = (replace(one, sampling=Sampling(max_tokens=9, n=3, temperature=1.0)) for one in (first, second))
    beams = replace(beams, sampling=Sampling(max_tokens=9, beam_width=2))
    outputs: dict[tuple[int, int], Any] = {}
    items = [*trace_items([first, second, beams], outputs)]
    assert {key: tokens.tolist() for key, tokens in outputs.items()} == {(0, 0): [7, 8, 9], (1, 0): [7, 8, 9]}
    found = replayed(items[:2], outputs)
    assert [answers[0] for answers in found] == [[7, 8, 9]] * 2
    others = [tuple(answer) for answers in found for answer in answers[1:]]
    assert len(others) == len({*others}) == 4, others
    assert all(len(answer) == 3 and min(answer) >= OUTPUT_BASE for answer in others), others
    assert outputs == {}, "what has been said is let go"
    assert len(replayed([replace(items[2])], {})[0]) == 2


def test_a_recording_keeps_every_sample_and_is_a_trace_of_the_first(tmp_path: Path) -> None:
    said = [[[5, 6, 7, 8], [9, 10], [11, 12, 13]], [[1], [2], [3]]]
    head = {"format": "kvlab-recording", "version": 2, "eos_token_ids": [0], "max_model_len": 64, "window": 16}
    lines = [
        {"number": 3 * at, "arrival_step": at, "prompt": [5, 6, 7], "sampling": {"max_tokens": 4, "n": 3, "seed": 8},
         "seed": 41 + at, "outputs": answers, "tops": [[[[1, 2]], [[None, -0.5]]]] if at else []}
        for at, answers in enumerate(said)
    ]  # fmt: skip
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    recording = read_recording(path)
    assert (recording.window, recording.max_model_len, recording.eos_token_ids) == (16, 64, (0,))
    assert [request.sampling.seed for request in recording.requests] == [41, 42], "the seed that was drawn"
    assert recording.tops == {(1, 0): ([[1, 2]], [[-inf, -0.5]])}
    ends = {key: len(tokens) for key, tokens in recording.outputs.items()}
    assert ends == {(at, n): len(tokens) for at, answers in enumerate(said) for n, tokens in enumerate(answers)}
    whole = [replace(one, sampling=replace(one.sampling, ignore_eos=True)) for one in recording.requests]
    kept = {**recording.outputs}
    found = replayed(whole, recording.outputs)
    assert [[answer[: ends[at, n]] for n, answer in enumerate(answers)] for at, answers in enumerate(found)] == said
    assert (recording.outputs, len(kept)) == ({}, 6)
    read = [*open_trace(path)]
    assert [request.output.tolist() for request in read if request.output is not None] == [said[0][0], said[1][0]]
    assert [(request.output_tokens, request.sampling.n) for request in read] == [(4, 3), (1, 3)]


def test_a_request_that_just_fits_is_foreseen_and_one_of_beams_by_its_prompt_alone() -> None:
    requests = requests_of([[1], [1, 2], [1]])
    longest = requests[1].input_tokens + 3
    for max_len, expected in ((longest, 2), (longest - 1, 3)):
        future = Foresight(engine_of(Belady(), 50, 4).allocator, requests, max_len=max_len)
        assert future.next_uses(0).tolist() == [expected]
    text = list(range(12))
    first, second = spoken([(text[:4], text[4:12]), (text, [7])])
    first = replace(first, sampling=replace(first.sampling, beam_width=2))
    future = Foresight(engine_of(Belady(), 50, 4).allocator, [first, second], max_len=200)
    assert future.next_uses(0).tolist() == [2], "which beam it took, nobody knows"


@pytest.fixture
def lengths() -> Iterator[WorkloadRequest]:
    return iter([WorkloadRequest(arrival_s=0.0, input_tokens=5, output_tokens=2)])


def test_an_allocator_that_takes_no_future_is_refused(lengths: Iterator[WorkloadRequest]) -> None:
    blind = type("Blind", (), {"takes_future": False, "block_size": 4})()
    with pytest.raises(ConfigError, match="Blind does not take the future"):
        Foresight(blind, lengths, max_len=10)


def test_a_trace_of_lengths_has_no_future(lengths: Iterator[WorkloadRequest]) -> None:
    with pytest.raises(ConfigError, match="lengths only"):
        Foresight(engine_of(Belady(), 5, 4).allocator, lengths, max_len=10)
