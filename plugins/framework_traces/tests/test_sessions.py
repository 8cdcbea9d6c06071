"""Readers whose requests come after others: sessions, turns and graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.errors import WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework_traces.writing import write_trace
from framework_workloads.trace import open_trace


def written(folder: Path, *lines: Any, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def turn(session: str, length: int, ids: list[int], output: int = 10, **times: Any) -> dict[str, Any]:
    return {"session_id": session, "input_length": length, "output_length": output, "hash_ids": ids, **times}


def read(path: Path, **options: Any) -> list[WorkloadRequest]:
    return list(open_trace(path, **options))


def test_later_turns_come_after_the_answer_and_the_delay(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        turn("a", 1000, [1, 2], timestamp=500),
        turn("b", 600, [1, 3], timestamp=0),
        turn("a", 1600, [1, 4, 5, 6], delay=2000),
    )
    assert open_trace(path).format == "mooncake_sessions"
    found = read(path)
    assert [(one.key, one.arrival_s, one.after, one.delay_s) for one in found] == [
        ("b:0", 0.0, (), 0.0), ("a:0", 0.5, (), 0.0), ("a:1", 2.5, ("a:0",), 2.0),
    ]  # fmt: skip
    assert found[2].block_ids is not None
    assert found[2].block_ids.tolist() == [1, 4, 5, 6]


def test_contexts_are_added_up_where_lines_hold_new_tokens_alone(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        turn("a", 1100, [1, 2, 3], output=100, timestamp=0),
        turn("a", 400, [7], output=50, delay=1000),
        turn("a", 500, [8], delay=1000),
        turn("b", 1100, [1, 2, 3], timestamp=100),
    )
    assert open_trace(path).format == "mooncake_turns"
    first, other, second, third = read(path)
    assert [one.input_tokens for one in (first, second, third, other)] == [1100, 1600, 2150, 1100]
    ids = [one.block_ids.tolist() for one in (first, second, third) if one.block_ids is not None]
    assert ids[0] == [1, 2, 3]
    assert ids[1][:2] == ids[2][:2] == [1, 2], "the first turn's full blocks"
    assert len(ids[1]) == 1600 // 512
    assert ids[2][:3] == ids[1], "a context begins with the one before it"
    assert len(ids[2]) == 2150 // 512
    assert not {ids[1][2], ids[2][3]} & {1, 2, 3, 7, 8}


def test_a_format_that_is_named_overrules_what_the_first_lines_look_like(tmp_path: Path) -> None:
    path = written(tmp_path, turn("a", 600, [1, 2], timestamp=0), turn("a", 700, [3, 4], delay=1))
    assert read(path)[1].input_tokens == 600 + 10 + 700
    assert read(path, format="mooncake_sessions")[1].input_tokens == 700


def test_a_turn_with_a_time_and_no_delay_waits_for_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, turn("a", 600, [1, 2], timestamp=0), turn("a", 700, [1, 3], timestamp=9000))
    assert [(one.arrival_s, one.after, one.turn) for one in read(path)] == [(0.0, (), 0), (9.0, (), 1)]


def node(name: str, after: Any = (), field: str = "wait_for", **more: Any) -> dict[str, Any]:
    return {"request_id": name, "input_length": 600, "output_length": 5, "hash_ids": [1, 2**64 - 1],
            field: list(after), **more}  # fmt: skip


def test_a_graph_waits_for_all_its_dependencies(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"schema": "agentic", "version": 2},
        node("p", timestamp=100),
        node("x", ["p"], delay=50),
        node("y", [{"request_id": "p", "relation": "child"}], "dependencies", tool_wait_ms=500, delay=250),
        node("join", ["x", "y"], not_before_ms=5000),
    )
    assert open_trace(path).format == "agentic_mooncake"
    found = {one.key: one for one in read(path)}
    assert {key: (one.after, one.delay_s, one.not_before_s) for key, one in found.items()} == {
        "p": ((), 0.0, 0.0), "x": (("p",), 0.05, 0.0), "y": (("p",), 0.75, 0.0), "join": (("x", "y"), 0.0, 5.0),
    }  # fmt: skip
    assert [found[key].arrival_s for key in ("p", "x", "y", "join")] == pytest.approx([0.1, 0.15, 0.85, 5.0])
    ids = found["p"].block_ids
    assert ids is not None
    assert ids[1] >= 2**62, "a name of 64 bits is no number"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([turn("a", 600, [1, 2], timestamp=0), turn("", 600, [1, 2])], "session_id: missing"),
        ([turn("a", 600, [1, 2], timestamp=0), turn("a", 600, [1], delay=1, output=1) | {"input_length": 1600}],
         "hash_ids: 1 block ids for 1600"),
        ([turn("a", 600, [1, 2], timestamp=0), turn("a", 600, [1, 2], delay=-1)], "delay: expected a finite number"),
        ([turn("a", 600, [1, 2], timestamp=0), turn("a", 600, [1, 2], delay="soon")], "delay: expected a number"),
        ([node("a", timestamp=0), node("b", ["c"])], "timestamp: missing, and 'c'"),
        ([node("a", timestamp=0), node("b", "c", timestamp=1) | {"wait_for": "c"}], "wait_for: expected a list"),
        ([node("a", timestamp=0), node("b", [""], timestamp=1)], "wait_for: .* an empty one"),
        ([node("a", timestamp=0), node("b", [{"id": "a"}], "dependencies", timestamp=1)], "dependencies: .* empty"),
        ([node("a", timestamp=0), node("", timestamp=1)], "request_id: missing"),
        ([node("a", timestamp=0), node("b", ["a"], not_before_ms=-5)], "not_before_ms: expected a finite"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(lines: list[dict[str, Any]], says: str, tmp_path: Path) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(WorkloadError, match=f"trace.jsonl:2: {says}"):
        read(path)
    assert len(read(path, on_error="skip")) == 1


def session(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "requests": list(requests)}


def call(at_s: float, **more: Any) -> dict[str, Any]:
    return {"t": at_s, "type": "s", "in": 70, "out": 7, "hash_ids": [1], **more}


def test_a_caller_waits_for_the_sub_agents_it_called_and_they_for_the_call(tmp_path: Path) -> None:
    document = session(
        call(0.0, api_time=2.0),
        {"type": "subagent", "t": 2.5, "agent_id": "x", "requests": [
            call(3.0, api_time=4.0), call(9.0, think_time=1.5)]},
        {"type": "subagent", "t": 2.5, "agent_id": "y", "requests": [
            call(3.5), {"type": "subagent", "agent_id": "z", "requests": [call(5.0)]}]},
        call(20.0, api_time=1.0),
        call(30.0, think_time=8.0),
    )  # fmt: skip
    found = {one.key: one for one in read(written(tmp_path, document))}
    after = {key: one.after for key, one in found.items()}
    assert after == {
        "s:0": (), "s:1": ("s:0",), "s:2": ("s:1",), "s:3": ("s:0",), "s:4": ("s:3",),
        "s:5": ("s:0", "s:2", "s:3", "s:4"), "s:6": ("s:5",),
    }  # fmt: skip
    assert {key: one.delay_s for key, one in found.items()} == {
        "s:0": 0.0, "s:1": 1.0, "s:2": 1.5, "s:3": 1.5, "s:4": 1.5, "s:5": 11.0, "s:6": 8.0,
    }  # fmt: skip
    assert found["s:4"].session == "s/y/z"


@pytest.mark.parametrize("field", ["think_time", "api_time"])
def test_a_time_that_is_none_is_named(field: str, tmp_path: Path) -> None:
    first = call(0.0, **({field: "long"} if field == "api_time" else {}))
    second = call(5.0, **({field: -1} if field == "think_time" else {}))
    with pytest.raises(WorkloadError, match=field):
        read(written(tmp_path, session(first, second)))


def test_our_own_format_holds_what_comes_after_what(tmp_path: Path) -> None:
    requests = [
        WorkloadRequest(input_tokens=5, output_tokens=2, key="a"),
        WorkloadRequest(input_tokens=6, output_tokens=2, arrival_s=1.0, key="b", after=("a",), delay_s=0.5),
        WorkloadRequest(input_tokens=6, output_tokens=2, arrival_s=1.0, after=("a", "b"), not_before_s=9.0),
    ]
    write_trace(tmp_path / "own.jsonl", requests)
    assert [(one.key, one.after, one.delay_s, one.not_before_s) for one in read(tmp_path / "own.jsonl")] == [
        ("a", (), 0.0, 0.0), ("b", ("a",), 0.5, 0.0), ("", ("a", "b"), 0.0, 9.0),
    ]  # fmt: skip
    wrong = {'"after": "a"': "after: expected a list", '"after": [7, ""]': "after: .* empty",
             '"delay_s": -1': "delay_s: expected a finite", '"not_before_s": "x"': "not_before_s"}  # fmt: skip
    for line, says in wrong.items():
        header = '{"format": "kvlab-trace", "version": 1, "block_tokens": 16}'
        path = written(tmp_path, header, f'{{"arrival_s": 0, "input_tokens": 5, "output_tokens": 1, {line}}}')
        with pytest.raises(WorkloadError, match=says):
            read(path)


def test_coarser_blocks_of_a_trace_can_be_written(tmp_path: Path) -> None:
    lines = [turn("a", 128, [1, 2, 3, 4, 5, 6, 7, 8], timestamp=0)]
    path = written(tmp_path, *lines)
    fine = open_trace(path, format="hash_ids", block_tokens=16)
    write_trace(tmp_path / "fine.jsonl", fine)
    write_trace(tmp_path / "coarse.jsonl", open_trace(tmp_path / "fine.jsonl", block_tokens=32))
    found = read(tmp_path / "coarse.jsonl")[0].block_ids
    assert found is not None
    assert found.tolist() == [2, 4, 6, 8]
