"""Traces as published and traces that lie: right answers, or an error with file, line and field."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from synthetic_workloads import example

from framework import registry
from framework.errors import WorkloadError
from framework.interfaces.workload import name_blocks
from framework_testing import trace_checks
from framework_traces.writing import write_trace
from framework_workloads.trace import detect_format, open_trace

READERS = registry.names("trace")


@pytest.mark.parametrize("check", trace_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_passes_the_kit(name: str, check: object) -> None:
    check(registry.load("trace", name))  # type: ignore[operator]


@pytest.mark.parametrize("name", [name for name in READERS if name != "hash_ids"])
def test_every_example_is_recognised_by_its_content_alone(name: str, tmp_path: Path) -> None:
    assert detect_format(example(name, tmp_path)) == name


AFTER = {"metadata": {"x_correlation_id": "a", "turn_index": 0, "request_start_ns": 1759813209532900363,
                      "request_end_ns": 1759813209732900363}}  # fmt: skip
LIES: dict[str, list[tuple[int, dict[str, Any], str]]] = {
    "recording": [
        (1, {"prompt": []}, ":2: prompt: a prompt has at least one token"),
        (1, {"prompt": [1, "2"]}, ":2: prompt: expected"),
        (1, {"outputs": [[1, -2]]}, ":2: outputs: expected a flat list of whole numbers"),
        (1, {"sampling": None}, ":2: sampling: expected an object"),
        (1, {"arrival_step": None}, ":2: arrival_step: missing"),
        (0, {"version": 4}, "version"),
    ],
    "tracelab": [
        (1, {"session_id": None}, ":2: session_id: missing"),
        (0, {"round_index": 4}, ":2: round_index: 1 after 4 of session 'claude:9': sort them by round"),
        (1, {"timing_events": []}, ":2: timing_events: expected a list of events"),
        (1, {"prefix_tokens": -1}, ":2: prefix_tokens: expected 0 to"),
        (1, {"input_tokens_total": 0}, ":2: input_tokens_total: expected 1 to"),
    ],
    "trie": [
        (0, {"num_turns": 1}, ":1: num_turns: 1, which is not how many"),
        (0, {"tool_call_latency": [0.5, -2.0]}, ":1: tool_call_latency: expected a finite number"),
        (0, {"tool_call_latency": None}, ":1: num_turns: 2, which is not how many"),
        (0, {"assistant_response_length": 3}, ":1: assistant_response_length"),
        (0, {"input_prompt_length": 0}, ":1: input_prompt_length: expected 1 to"),
        (0, {"tool_call_output_length": [10**8, 10**8]}, ":1: tool_call_output_length: expected 1 to"),
    ],
    "aiperf": [
        (0, {"metadata": {"request_start_ns": 1}}, ":1: turn_index: missing"),
        (0, {"metrics": {}}, ":1: input_sequence_length: expected an object"),
        (0, {"metrics": {"input_sequence_length": {}, "output_sequence_length": {}}}, "input_sequence_length: missing"),
        (1, AFTER, ":2: turn_index: 0 twice in session 'a'"),
    ],
    "vllm_bench": [
        (0, {"input_lens": None, "start_times": None}, "input_lens: missing"),
        (0, {"start_times": [1.0]}, "start_times: as many as input_lens"),
        (0, {"input_lens": [0, 3]}, "input_lens: expected 1 to"),
        (0, {"input_lens": ...}, "input_lens: missing; .*--save-detailed"),
        (0, {"start_times": ...}, "start_times: missing; .*--save-detailed"),
        (1, {}, "a second result, whose clock is another"),
    ],
}
"""Reader -> which line of its example says what instead (...: nothing), and the error."""


@pytest.mark.parametrize(("name", "at", "change", "says"), [(name, *lie) for name in LIES for lie in LIES[name]])
def test_a_line_that_lies_is_named(name: str, at: int, change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = example(name, tmp_path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records += records[:1] * (at + 1 - len(records))
    records[at] = {key: value for key, value in (records[at] | change).items() if value is not ...}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(WorkloadError, match=says):
        list(open_trace(path))


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(tmp_path: Path, *stamps: str) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE + "".join(f"{stamp},3,1\n" for stamp in stamps))
    return path


def test_an_offset_from_utc_is_honoured(tmp_path: Path) -> None:
    path = azure(tmp_path, "2023-11-16 18:00:00.5+02:00", "2023-11-16T16:00:01Z", "2023-11-16 16:00:02",
                 "2023-11-16 08:00:03-0800")  # fmt: skip
    assert [request.arrival_s for request in open_trace(path)] == [0.0, 0.5, 1.5, 2.5]


@pytest.mark.parametrize("stamp", ["2023-11-16 18:15:46.-5", "2023-11-16 18:15:46.1_0", "٢٠٢٣-11-16 18:15:46", "-5",
                                   "2023-11-16 18:15:46.", "2023-13-16 18:15:46", "1900-01-01 00:00:00"])  # fmt: skip
def test_what_is_no_time_is_refused(tmp_path: Path, stamp: str) -> None:
    with pytest.raises(WorkloadError, match=r"azure\.csv:2: TIMESTAMP: expected a"):
        list(open_trace(azure(tmp_path, stamp)))


@pytest.mark.parametrize("value", ["1_300", "\uff11\uff13", "٣", " 3", "3.5", "+-3", "0x10", "1e3", ""])
def test_what_are_no_ascii_digits_is_no_number(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{AZURE}2023-11-16 18:15:46,{value},1\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"a\.csv:2: ContextTokens: expected a whole number"):
        list(open_trace(path))
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"timestamp": value or "x", "input_length": 3, "output_length": 1, "hash_ids": [1]}))
    if value not in ("3.5", "1e3"):
        with pytest.raises(WorkloadError, match=r"m\.jsonl:1: timestamp: expected a number"):
            list(open_trace(path))


def test_a_trace_without_a_request_names_the_file_and_the_count(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"azure\.csv holds 0 requests"):
        list(open_trace(azure(tmp_path)))
    path = azure(tmp_path, "yesterday", "tomorrow")
    with pytest.raises(WorkloadError, match=r"azure\.csv holds 0 requests; 2 lines were skipped; the first: .*:2: "):
        list(open_trace(path, on_error="skip"))


def test_ragpulse_prompts_share_exactly_their_leading_chunks(tmp_path: Path) -> None:
    path = example("ragpulse", tmp_path)
    first, second = open_trace(path, block_tokens=8)
    assert (first.input_tokens, first.session, first.arrival_s) == (40, "s-1", 82.0)
    assert first.tokens is not None
    assert second.tokens is not None
    assert first.tokens[:16].tolist() == second.tokens[:16].tolist(), "the system prompt"
    assert not set(first.tokens[16:20].tolist()) & set(second.tokens[16:20].tolist()), "other passages follow"
    assert set(first.tokens[16:28].tolist()) < set(second.tokens.tolist()), "the same passage, elsewhere"
    assert len(second.tokens) == 39, "3 tokens that no chunk names"
    assert first.block_ids is not None
    assert first.block_ids.tolist() == name_blocks(first.tokens, 8).tolist()
    (tmp_path / "3_history.jsonl").unlink()
    with pytest.raises(WorkloadError, match=r"3_history\.jsonl is not there: RAGPulse publishes"):
        list(open_trace(path))


def test_kv_cache_tester_sessions_are_read_from_a_file_a_line_and_a_folder(tmp_path: Path) -> None:
    one = example("kv_cache_tester", tmp_path)
    text = one.read_text()
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "trace_0001.json").write_text(text)
    (folder / "trace_0002.json.gz").write_bytes(gzip.compress(text.replace("trace_0001", "trace_0002").encode()))
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(json.loads(text) | {"id": name}) + "\n" for name in ("a", "b")))
    main, sub, later = open_trace(one)
    assert [one.session for one in (main, sub, later)] == ["trace_0001", "trace_0001/a1", "trace_0001"]
    assert [one.turn for one in (main, sub, later)] == [0, 0, 1]
    assert {one.namespace.salt for one in (main, sub, later)} == {"trace_0001"}, "blocks are shared with sub-agents"
    assert (later.category, later.input_tokens, later.block_tokens) == ("tool_result", 200, 64)
    for path, names in ((folder, {"trace_0001", "trace_0002"}), (lines, {"a", "b"})):
        found = list(open_trace(path))
        assert (len(found), {one.namespace.salt for one in found}) == (6, names)
        assert [one.arrival_s for one in found] == sorted(one.arrival_s for one in found)
    one.write_text(text.replace('"in": 130', '"in": 0'))
    with pytest.raises(WorkloadError, match=r"\.json:1: requests\[0\]: in: "):
        list(open_trace(one))


@pytest.mark.parametrize(("name", "equal"), [("local", False), ("global", True)])
def test_equal_ids_of_two_kv_cache_tester_sessions_are_one_content_only_where_the_file_says_so(
    name: str, equal: bool, tmp_path: Path
) -> None:
    path = example("kv_cache_tester", tmp_path)
    document = json.loads(path.read_text()) | {"hash_id_scope": name}
    path.write_text("".join(json.dumps(document | {"id": session}) + "\n" for session in ("a", "b")))
    found: dict[str | None, list[int]] = {}
    for one in open_trace(path):
        assert one.block_ids is not None
        found.setdefault((one.session or "")[0], []).extend(one.block_ids.tolist())
    assert found["a"] == [1, 2, 1, 1, 2, 3], found
    assert (found["a"] == found["b"], set(found["a"]).isdisjoint(found["b"])) == (equal, not equal), found


def _ragpulse(folder: Path, times: list[float]) -> Path:
    path = example("ragpulse", folder)
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text("".join(json.dumps({**line, "timestamp": str(time)}) + "\n" for time in times))
    return path


def test_a_ragpulse_file_whose_clock_starts_again_is_read_whole(tmp_path: Path) -> None:
    trace = open_trace(_ragpulse(tmp_path, [82, 93, 604453, 0, 27, 300]))
    assert [one.arrival_s for one in trace] == [82, 93, 604453, 604453, 604480, 604753]
    assert [one.arrival_s for one in trace] == [82, 93, 604453, 604453, 604480, 604753], "read anew"
    with pytest.raises(WorkloadError, match=r"0_trace\.jsonl:3: arrival time: 93\.0 s after 200\.0 s"):
        list(open_trace(_ragpulse(tmp_path, [82, 200, 93])))


@pytest.mark.parametrize("file", ["1_sys_prompt.jsonl", "4_user_input.jsonl"])
def test_a_ragpulse_chunk_has_one_length_in_one_file(tmp_path: Path, file: str) -> None:
    path = _ragpulse(tmp_path, [82])
    with (tmp_path / file).open("a") as lines:
        lines.write('{"sys_prompt_id": 1, "token_length": 9}\n')
    with pytest.raises(WorkloadError, match=rf"{file}:2: chunk 1 appears twice.*with 16 tokens"):
        list(open_trace(path))


def test_kv_cache_tester_documents_are_known_over_many_lines_and_their_ids_are_their_own(tmp_path: Path) -> None:
    path = example("kv_cache_tester", tmp_path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document, indent=2))
    assert len(list(open_trace(path))) == 3
    path.write_text(json.dumps({**document, "hash_id_scope": "glob"}))
    with pytest.raises(WorkloadError, match=r"\.json:1: hash_id_scope: .*local or global, found 'glob'"):
        list(open_trace(path))
    path.write_text(2 * (json.dumps(document) + "\n"))
    with pytest.raises(WorkloadError, match=r"\.json:2: id: session 'trace_0001' appears twice"):
        list(open_trace(path))


def test_bailian_chats_are_followed_to_their_root(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    line = {"timestamp": 1.0, "input_length": 3, "output_length": 1, "type": "text", "hash_ids": [1]}
    chats = [(1, -1, 1), (2, 1, 2), (3, 2, 3), (9, 8, 2)]
    records = ({**line, "chat_id": chat, "parent_chat_id": parent, "turn": turn} for chat, parent, turn in chats)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = list(open_trace(path))
    assert [one.session for one in found] == ["1", "1", "1", "8"]
    assert [(one.turn, one.category) for one in found] == [(0, "text"), (1, "text"), (2, "text"), (1, "text")]


def test_a_convert_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path, out = tmp_path / "m.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}\nbroken\n')
    assert command("trace")(["convert", str(path), "--out", str(out)]) == 2
    assert not out.exists()
    out.write_text("good")
    assert command("trace")(["convert", str(path), "--out", str(out)]) == 2
    assert out.read_text() == "good"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.jsonl", "out.jsonl"]
    with pytest.raises(FileNotFoundError, match=r"t\.jsonl'$"):
        write_trace(tmp_path / "no" / "t.jsonl", [])


def test_of_an_archive_the_error_says_what_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "agents.tar.xz"
    with tarfile.open(archive, "w:xz"):
        pass
    assert command("trace")(["describe", str(archive)]) == 2
    assert "workload=agent_text reads archives" in capsys.readouterr().err
