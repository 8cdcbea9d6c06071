"""Calls of agents and files of benchmarks: names by session, who waits for whom, and files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_workloads import example

from framework import api
from framework.errors import WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework_workloads.trace import open_trace

MINUTE = "2026-06-01T05:%02d:%02dZ"


def round_(index: int, tokens: int, prefix: int, second: int, **more: Any) -> dict[str, Any]:
    """A round whose input is there at this second and whose last event comes four seconds later."""
    events = [{"event_type": "user_message", "timestamp": MINUTE % (0, second)},
              {"event_type": "text", "timestamp": MINUTE % (0, second + 4)}]  # fmt: skip
    return {"session_id": "s", "round_index": index, "input_tokens_total": tokens, "prefix_tokens": prefix,
            "newly_append_tokens": tokens - prefix, "output_tokens": 10, "timing_events": events, **more}  # fmt: skip


def put(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def names(request: WorkloadRequest) -> list[int]:
    assert request.block_ids is not None
    return list(request.block_ids.tolist())


def test_a_tracelab_prompt_begins_with_the_one_before_it_unless_it_is_shorter(tmp_path: Path) -> None:
    path = put(tmp_path / "t.jsonl", round_(0, 1030, 0, 0), round_(1, 1600, 0, 20), round_(2, 1100, 600, 30),
               round_(0, 1030, 0, 40, session_id="other"))  # fmt: skip
    trace = open_trace(path)
    first, second, third, other = trace
    assert (trace.format, trace.block_tokens) == ("tracelab", 512)
    assert names(first) == [0, 1]
    assert names(second) == [0, 1, 2], "whatever the provider's cache had forgotten"
    assert names(third) == [0, 3], "a context summed up begins with the 600 tokens that the provider's cache had"
    assert not {*names(other)} & {0, 1, 2, 3}, "sessions share nothing"
    small = list(open_trace(path, block_tokens=16))
    assert len(names(small[0])) == 64
    assert names(small[2])[:37] == names(small[1])[:37]
    assert names(small[2])[37] != names(small[1])[37], "600 tokens are 37 blocks of 16 and a half"


def test_a_tracelab_round_waits_for_the_one_before_it_and_its_recorded_gap(tmp_path: Path) -> None:
    first, second, third = open_trace(put(tmp_path / "t.jsonl", round_(0, 9, 0, 0), round_(1, 19, 9, 20),
                                          round_(1, 29, 19, 22)))  # fmt: skip
    assert (first.after, second.after, third.after) == ((), (first.key,), (second.key,))
    assert (second.delay_s, third.delay_s) == (16.0, 0.0), "from the last event; never below 0"
    assert [one.arrival_s for one in (first, second, third)] == [0.0, 20.0, 22.0]


def span(name: str, start: float, end: float, *, tokens: int | None = 50, **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c"}
    facts |= {"gen_ai.usage.input_tokens": tokens, "gen_ai.usage.output_tokens": 3} if tokens is not None else {}
    facts |= more.pop("facts", {})
    attributes = [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in facts.items() if value is not None
    ]  # fmt: skip
    return {"traceId": "t", "spanId": name, "startTimeUnixNano": str(int(1e18 + start * 1e9)),
            "endTimeUnixNano": str(int(1e18 + end * 1e9)), "attributes": attributes, **more}  # fmt: skip


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_wait_for_those_that_had_ended_and_that_nobody_else_waited_for(tmp_path: Path) -> None:
    # a, then b and c at once, of which c is followed by d; e joins b and d.
    spans = [span("a", 0, 2), span("c", 3, 4), span("d", 4.5, 6), span("b", 3, 7), span("e", 8, 9)]
    path = put(tmp_path / "spans.jsonl", export(*spans[:2]), export(*spans[2:]))
    found = {one.key.removeprefix("t:"): one for one in open_trace(path)}
    waits = {name: {key.removeprefix("t:") for key in one.after} for name, one in found.items()}
    assert waits == {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"c"}, "e": {"b", "d"}}
    assert [round(found[name].delay_s, 6) for name in "abcde"] == [0, 1, 1, 0.5, 1]
    assert [round(found[name].arrival_s, 6) for name in "abcde"] == [0, 3, 3, 4.5, 8]
    assert {(one.session, one.input_tokens, one.output_tokens) for one in found.values()} == {("c", 50, 3)}


def test_spans_of_tools_of_agents_and_of_errors_are_no_requests(tmp_path: Path) -> None:
    tool = span("t", 0, 1, tokens=None, facts={"gen_ai.operation.name": "execute_tool"})
    agent = span("g", 0, 9, facts={"gen_ai.operation.name": "invoke_agent"})
    failed = span("f", 0, 1, tokens=None, status={"code": 2})
    plain = span("x", 0, 1, facts={"gen_ai.operation.name": None})
    unnamed = span("n", 2, 3, facts={"gen_ai.conversation.id": None})
    path = put(tmp_path / "spans.jsonl", tool, agent, failed, plain, unnamed)
    (request,) = open_trace(path)
    assert (request.key, request.session) == ("t:n", "t"), "without a conversation the trace is the session"


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (span("b", 3, 2), r"spans\[1\]: endTimeUnixNano: before startTimeUnixNano"),
        (span("a", 3, 4), r"spans\[1\]: spanId: t:a appears twice"),
        (span("b", 3, 4, tokens=None), r"spans\[1\]: gen_ai.usage.input_tokens: missing"),
        (span("", 3, 4), r"spans\[1\]: spanId: missing"),
        (span("b", 3, 4, startTimeUnixNano="soon"), r"spans\[1\]: startTimeUnixNano: expected a whole number"),
        (span("b", 3, 4, attributes=3), r"spans\[1\]: attributes: expected a list of objects"),
        ("no span", r"spans: expected a list of objects"),
    ],
)
def test_a_span_that_lies_is_named(damaged: Any, message: str, tmp_path: Path) -> None:
    path = put(tmp_path / "spans.jsonl", export(span("a", 0, 2), damaged))
    with pytest.raises(WorkloadError, match=r"spans\.jsonl:1: .*" + message):
        list(open_trace(path))


def said(*words: str, tokens: int, at: float, structured: bool = False, **facts: Any) -> dict[str, Any]:
    """A span whose prompt has these messages."""
    one = span(str(at), at, at + 1, tokens=tokens, facts=facts)
    messages = [{"role": "user", "parts": [{"type": "text", "content": word}]} for word in words]
    held: dict[str, Any] = {"stringValue": json.dumps(messages)}
    if structured:
        held = {"arrayValue": {"values": [{"kvlistValue": {"values": [message]}} for message in messages]}}
    one["attributes"].append({"key": "gen_ai.input.messages", "value": held})
    return one


@pytest.mark.parametrize("structured", [False, True])
def test_a_prompt_of_spans_begins_with_the_longest_earlier_one_whose_messages_it_begins_with(
    structured: bool, tmp_path: Path
) -> None:
    def other(*words: str, **facts: Any) -> dict[str, Any]:
        return said(*words, structured=structured, **facts)

    lines = [
        other("s", "a", "b", "c", tokens=100, at=9), other("s", "a", tokens=50, at=0),
        other("s", "x", tokens=40, at=2), other("s", "a", "b", tokens=70, at=4, **{"gen_ai.conversation.id": "d"}),
        other("s", "a", tokens=50, at=6, **{"gen_ai.request.model": "other"}),
    ]  # fmt: skip
    path = put(tmp_path / "spans.jsonl", *lines)
    trace = open_trace(path)
    first, fork, longer, model, last = trace
    assert trace.block_tokens == 16
    assert [names(one) for one in (first, fork, longer)] == [[0, 1, 2], [3, 4], [0, 1, 2, 5]]
    assert names(last) == [0, 1, 2, 5, 9, 10], "of two earlier prompts the longer"
    assert names(model) == [6, 7, 8], "another model"
    assert [len(names(one)) for one in open_trace(path, block_tokens=10)] == [5, 4, 7, 5, 10]


def test_spans_whose_messages_come_late_or_are_none_are_refused(tmp_path: Path) -> None:
    plain = [span(str(at), at, at + 1) for at in range(2)]
    path = put(tmp_path / "late.jsonl", *plain, said("a", tokens=50, at=3))
    assert open_trace(put(tmp_path / "plain.jsonl", *plain)).block_tokens == 0
    with pytest.raises(WorkloadError, match=r"late\.jsonl:3: span: gen_ai\.input\.messages: recorded here"):
        list(open_trace(path))
    assert [len(names(one)) for one in open_trace(path, block_tokens=16)] == [3, 3, 3]
    for held in ("no list", "[]"):
        lies = span("z", 0, 1, facts={"gen_ai.input.messages": held})
        with pytest.raises(WorkloadError, match=r"gen_ai\.input\.messages: expected a list of messages"):
            list(open_trace(put(tmp_path / "lies.jsonl", lies)))


NESTED = {"id": "n", "block_size": 64, "requests": [
    {"t": 0.0, "in": 130, "out": 7, "hash_ids": [1, 2]},
    {"t": 1.0, "type": "subagent", "agent_id": "a", "requests": [
        {"t": 2.0, "in": 70, "out": 2, "hash_ids": [1]},
        {"t": 3.0, "type": "subagent", "agent_id": "b", "requests": [
            {"t": 4.0, "in": 140, "out": 30, "hash_ids": [1, 7], "think_time": 0.25}]},
        {"t": 5.0, "in": 90, "out": 2, "hash_ids": [1]}]},
    {"t": 9.0, "in": 200, "out": 7, "hash_ids": [1, 2, 3]},
]}  # fmt: skip
"""A sub-agent that calls one of its own."""


@pytest.mark.parametrize(
    "name",
    [
        "tracelab",
        "opentelemetry",
        "kv_cache_tester",
        "mooncake_sessions",
        "mooncake_turns",
        "agentic_mooncake",
        "trie",
        "aiperf",
    ],
)
def test_in_a_closed_loop_requests_leave_after_the_answers_that_they_wait_for(name: str, tmp_path: Path) -> None:
    path = example(name, tmp_path)
    if name == "kv_cache_tester":
        path.write_text(json.dumps(NESTED))
    found = api.run({
        "mode": "fleet", "workload": {"name": "trace", "path": str(path)}, "replay": {"step_s": 5.0},
        "cache": {"block_size": 16, "num_blocks": 4000}, "run": {"dir": str(tmp_path / "run"), "progress": False},
    })  # fmt: skip
    requests = list(open_trace(path))
    assert (found["loop"], found["num_finished"]) == ("closed", len(requests)), found
    rows = (json.loads(line) for line in (tmp_path / "run/requests.jsonl").read_text().splitlines())
    by_key = {row["key"]: row for row in rows}
    assert any(one.after for one in requests)
    for one in requests:
        answers = [by_key[key]["finished_s"] for key in one.after]
        leaves = max(max(answers) + one.delay_s, one.not_before_s) if answers else one.arrival_s
        assert by_key[one.key]["arrival_s"] == pytest.approx(leaves), (one, by_key)
    if name == "kv_cache_tester":
        waits = {one.key: one.after for one in requests}
        assert waits == {"n:0": (), "n:1": ("n:0",), "n:2": ("n:1",), "n:3": ("n:1", "n:2"), "n:4": ("n:0", "n:3")}


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
