"""Files of benchmarks as traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_workloads import example

from framework.errors import WorkloadError
from framework_workloads.trace import open_trace


def put(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_session_of_trie_grows_by_answers_and_tool_outputs(tmp_path: Path) -> None:
    first, second, last, other = sorted(open_trace(example("trie", tmp_path)), key=lambda one: one.key)
    assert [one.input_tokens for one in (first, second, last, other)] == [1300, 1916, 1948, 90]
    assert [one.output_tokens for one in (first, second, last, other)] == [16, 20, 64, 7]
    assert [one.after for one in (first, second, last, other)] == [(), ("1:0",), ("1:1",), ()]
    assert [one.delay_s for one in (first, second, last)] == [0.0, 0.5, 2.0]
    assert [one.arrival_s for one in (first, second, last, other)] == [0.0, 0.5, 2.5, 0.0]
    found = [
        one.block_ids.tolist()
        for one in open_trace(tmp_path / "trie.jsonl", block_tokens=90)
        if one.block_ids is not None
    ]
    assert sorted(found, key=len) == [[21], [*range(14)], [*range(21)], [*range(21)]], "sessions share nothing"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_turns": 1}, "num_turns: 1, which is not how many"),
        ({"tool_call_latency": [0.5, -2.0]}, "tool_call_latency: expected a finite number"),
        ({"tool_call_latency": None}, "num_turns: 2, which is not how many"),
        ({"assistant_response_length": 3}, "assistant_response_length"),
        ({"input_prompt_length": 0}, "input_prompt_length: expected 1 to"),
        ({"tool_call_output_length": [10**8, 10**8]}, "tool_call_output_length: expected 1 to"),
    ],
)
def test_a_session_of_trie_that_lies_is_named(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    record = json.loads(example("trie", tmp_path).read_text().splitlines()[0]) | change
    with pytest.raises(WorkloadError, match=rf"a\.jsonl:1: .*{says}"):
        list(open_trace(put(tmp_path / "a.jsonl", record)))


def test_an_aiperf_turn_comes_after_the_answer_before_it_and_failures_are_left_out(tmp_path: Path) -> None:
    first, second = (json.loads(line) for line in example("aiperf", tmp_path).read_text().splitlines())
    failed = first | {"metrics": {"error_isl": {"value": 550}}, "error": {"code": 499}}
    one, two = open_trace(put(tmp_path / "a.jsonl", first, failed, second))
    assert (one.arrival_s, one.input_tokens, one.output_tokens, one.after) == (0.0, 550, 9, ())
    assert (two.arrival_s, two.input_tokens, two.after, two.delay_s) == (2.0, 600, (one.key,), 1.0)
    assert (two.session, two.turn, two.block_ids) == ("a", 1, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metadata": {"request_start_ns": 1}}, "turn_index: missing"),
        ({"metrics": {}}, "input_sequence_length: expected an object"),
        ({"metrics": {"input_sequence_length": {}, "output_sequence_length": {}}}, "input_sequence_length: missing"),
    ],
)
def test_an_aiperf_line_that_lies_is_named(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    record = json.loads(example("aiperf", tmp_path).read_text().splitlines()[0])
    with pytest.raises(WorkloadError, match=rf"a\.jsonl:1: .*{says}"):
        list(open_trace(put(tmp_path / "a.jsonl", record | change)))
    again = record | {"metadata": record["metadata"] | {"request_start_ns": 1759813208532900363,
                                                        "request_end_ns": 1759813208532900363}}  # fmt: skip
    with pytest.raises(WorkloadError, match="turn_index: 0 twice in session 'a'"):
        list(open_trace(put(tmp_path / "a.jsonl", record, again)))


def test_a_result_of_vllm_bench_is_its_requests_without_those_that_failed(tmp_path: Path) -> None:
    record = json.loads(example("vllm_bench", tmp_path).read_text())
    found = list(open_trace(put(tmp_path / "a.json", record)))
    assert [(one.arrival_s, one.input_tokens, one.output_tokens) for one in found] == [(0.0, 32, 2), (0.5, 33, 3)]
    (one,) = open_trace(put(tmp_path / "a.json", record | {"errors": ["", "timed out"]}))
    assert one.input_tokens == 32


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([{"input_lens": None, "start_times": None}], "input_lens: missing"),
        ([{"start_times": [1.0]}], "start_times: as many as input_lens"),
        ([{"input_lens": [0, 3]}], "input_lens: expected 1 to"),
        ([{}, {}], "a second result, whose clock is another"),
    ],
)
def test_a_result_of_vllm_bench_that_lies_is_named(records: list[dict[str, Any]], says: str, tmp_path: Path) -> None:
    record = json.loads(example("vllm_bench", tmp_path).read_text())
    with pytest.raises(WorkloadError, match=says):
        list(open_trace(put(tmp_path / "a.json", *(record | change for change in records))))


@pytest.mark.parametrize("name", ["input_lens", "start_times"])
def test_a_result_of_vllm_bench_without_details_says_how_to_have_them(name: str, tmp_path: Path) -> None:
    record = json.loads(example("vllm_bench", tmp_path).read_text())
    del record[name]
    with pytest.raises(WorkloadError, match=f"{name}: missing; .*--save-detailed"):
        list(open_trace(put(tmp_path / "a.json", record)))
