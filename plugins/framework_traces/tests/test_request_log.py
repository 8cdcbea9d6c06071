"""Traces of live engines: equal blocks stay equal, order is that of arrival; and SGLang's request log as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import command

from framework.errors import ConfigError, WorkloadError
from framework_traces.private import LiveRequest, PrivateTrace
from framework_traces.request_log import convert
from framework_workloads.trace import open_trace

main = command("trace")


def logged(rid: str, second: int, prompt: Any, output: Any, **asked: Any) -> str:
    """A line as SGLang 0.5.23 logs a request that has ended; tests/engines has its own logger write one."""
    record = {
        "timestamp": f"2026-11-22T12:00:{second:02d}.500000", "event": "request.finished", "rid": rid,
        "obj": {"rid": rid, "text": None, "input_ids": prompt, "sampling_params": {"max_new_tokens": 9}, **asked},
        "out": {"text": "secret words", "output_ids": output,
                "meta_info": {"id": rid, "completion_tokens": 3, "e2e_latency": 0.5}},
    }  # fmt: skip
    return f"[2026-11-22 12:00:{second:02d}] {json.dumps(record)}"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def common(one: Any, other: Any) -> int:
    """Tokens that two prompts share from the start."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


PROMPT = [*range(100, 140)]


def test_prompts_share_to_the_token_what_they_share_in_the_log(tmp_path: Path) -> None:
    log = written(
        tmp_path / "host_0.log",
        "[2026-11-22 12:00:00] server started",
        logged("a", 5, PROMPT, [7, 8, 9], session_id="talk"),
        logged("b", 9, [*PROMPT, 7, 8, 9, 1, 2], [3]),
        logged("c", 3, [*PROMPT[:25], 0, 0], [3]),
        logged("d", 9, PROMPT, [3], cache_salt="other"),
    )
    found = convert(log, tmp_path / "trace.jsonl", block_tokens=16)
    assert (found.num_requests, found.num_without_tokens) == (4, 0)
    c, a, b, d = open_trace(tmp_path / "trace.jsonl")
    assert [one.arrival_s for one in (c, a, b, d)] == [0, 2, 6, 6], "in order of arrival, from the first"
    assert common(a.tokens, b.tokens) == 40
    assert common(np.append(a.tokens, a.output), b.tokens) == 43, "the answer is found again in the next prompt"
    assert common(a.tokens, c.tokens) == 25
    assert common(a.tokens, d.tokens) == 0, "another salt shares nothing"
    assert [one.input_tokens for one in (c, a, b, d)] == [27, 40, 45, 40]
    assert [one.output_tokens for one in (c, a, b, d)] == [1, 3, 1, 1]
    text = (tmp_path / "trace.jsonl").read_text()
    assert "secret" not in text
    assert "talk" not in text
    assert not {100, 101, 102} & set(a.tokens.tolist()), "no token of the log"


def test_requests_of_text_alone_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    written(folder / "a.log", logged("a", 5, None, [7], text="hello"), logged("b", 6, PROMPT, None))
    assert main(["record", str(folder), "--out", str(tmp_path / "trace.jsonl")]) == 0
    assert "1 requests; 1 had text alone and were left out" in capsys.readouterr().out
    (only,) = open_trace(tmp_path / "trace.jsonl")
    assert only.output_tokens == 3, "its length is known where its tokens are not"


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([logged("a", 5, None, [7])], "no request with token ids among 1"),
        (["nothing here"], "no request with token ids among 0; SGLang logs them with --log-requests"),
        ([logged("a", 5, [1, "...", 2], [7])], "log:1: input_ids: the log leaves tokens out"),
        ([logged("a", 5, [1, -2], [7])], "log:1: input_ids: expected token ids"),
        ([logged("a", 5, [1], [7])[:-9]], "log:1: "),
    ],
)
def test_a_log_that_cannot_be_converted_is_refused_and_nothing_is_written(
    tmp_path: Path, lines: list[str], wrong: str
) -> None:
    with pytest.raises(WorkloadError, match=wrong):
        convert(written(tmp_path / "log", *lines), tmp_path / "trace.jsonl", block_tokens=16)
    assert not (tmp_path / "trace.jsonl").exists()


def test_a_source_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path / "absent"), "--out", str(tmp_path / "new")]) == 2
    assert "no such file; an address of KV events begins with tcp://" in capsys.readouterr().err


def test_equal_hashes_are_equal_tokens_and_the_rest_is_each_requests_own(tmp_path: Path) -> None:
    trace = PrivateTrace(tmp_path / "t", 4)
    for number, hashes in enumerate(([b"a", b"b", b"c"], [b"a", b"b"])):
        trace.arrived(LiveRequest(arrival_s=float(number), prompt_tokens=10, total_tokens=14, hashes=hashes))
        trace.ended()
    trace.close()
    first, second = open_trace(tmp_path / "t")
    assert first.tokens[:8].tolist() == second.tokens[:8].tolist()
    assert first.tokens[8:].tolist() != second.tokens[8:].tolist()
    assert (first.input_tokens, first.output_tokens) == (10, 4)
    assert first.block_tokens == 4


def test_requests_wait_for_those_that_came_before_them(tmp_path: Path) -> None:
    trace = PrivateTrace(tmp_path / "t", 4)
    early, late, never = (LiveRequest(arrival_s=at, prompt_tokens=5) for at in (0.0, 1.0, 2.0))
    for request in (early, late, never):
        trace.arrived(request)
    late.total_tokens = 6
    trace.ended()
    assert trace.num_requests == 0
    early.total_tokens = 7
    trace.ended()
    assert trace.num_requests == 2
    trace.close()
    trace.close()
    assert [one.output_tokens for one in open_trace(tmp_path / "t")] == [2, 1], "what did not end is left out"


def test_a_file_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("precious")
    with pytest.raises(ConfigError, match="is there already"):
        PrivateTrace(tmp_path / "t", 4)
    with pytest.raises(ConfigError, match="cannot be written"):
        PrivateTrace(tmp_path / "absent" / "t", 4)
