"""Files of benchmarks as traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from synthetic_workloads import example

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


def test_an_aiperf_turn_comes_after_the_answer_before_it_and_failures_are_left_out(tmp_path: Path) -> None:
    first, second = (json.loads(line) for line in example("aiperf", tmp_path).read_text().splitlines())
    failed = first | {"metrics": {"error_isl": {"value": 550}}, "error": {"code": 499}}
    one, two = open_trace(put(tmp_path / "a.jsonl", first, failed, second))
    assert (one.arrival_s, one.input_tokens, one.output_tokens, one.after) == (0.0, 550, 9, ())
    assert (two.arrival_s, two.input_tokens, two.after, two.delay_s) == (2.0, 600, (one.key,), 1.0)
    assert (two.session, two.turn, two.block_ids) == ("a", 1, None)


def test_a_result_of_vllm_bench_is_its_requests_without_those_that_failed(tmp_path: Path) -> None:
    record = json.loads(example("vllm_bench", tmp_path).read_text())
    found = list(open_trace(put(tmp_path / "a.json", record)))
    assert [(one.arrival_s, one.input_tokens, one.output_tokens) for one in found] == [(0.0, 32, 2), (0.5, 33, 3)]
    (one,) = open_trace(put(tmp_path / "a.json", record | {"errors": ["", "timed out"]}))
    assert one.input_tokens == 32
