"""Replays that begin in the middle of a trace, with its sessions under way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework import api
from framework.errors import ConfigError, WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework.workload import build
from framework_traces.writing import write_trace

SIZE = 16
TURNS = [("a", 0.0, 10), ("b", 1.0, 12), ("gone", 2.0, 8), ("a", 3.0, 20), ("b", 6.0, 24), ("new", 7.0, 5),
         ("a", 9.0, 30)]  # fmt: skip
"""Session, arrival and blocks of the context, of which each turn's holds the one before it."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    last: dict[str, str] = {}
    requests = []
    for number, (session, at_s, blocks) in enumerate(TURNS):
        ids = 1000 * (ord(session[0]) - 96) + np.arange(blocks)
        key = f"{session}:{number}"
        after = (last[session],) if session in last else ()
        requests.append(WorkloadRequest(
            arrival_s=at_s, input_tokens=blocks * SIZE + 1, output_tokens=1, block_ids=ids, block_tokens=SIZE, key=key,
            session=session, after=after, delay_s=0.5 if after else 0.0,
        ))  # fmt: skip
        last[session] = key
    path = tmp_path / "trace.jsonl"
    write_trace(path, requests)
    return path


def read(path: Path, **options: Any) -> list[WorkloadRequest]:
    return build("trace", {"path": path, **options})


def test_each_session_under_way_is_fed_its_last_context_first(trace: Path) -> None:
    found = read(trace, begin_s=5.0)
    assert [(one.key, one.arrival_s) for one in found] == [
        ("b:1", 0.0), ("a:3", 0.0), ("b:4", 1.0), ("new:5", 2.0), ("a:6", 4.0),
    ], "in order of their last use; a session that has ended is not fed"  # fmt: skip
    waits = {one.key: (one.after, one.not_before_s) for one in found}
    assert waits["b:4"] == (("b:1",), 1.0), "when it left as recorded, or after its context's answer"
    assert waits["a:6"] == (("a:3",), 4.0)
    assert waits["a:3"] == ((), 0.0)
    assert read(trace, begin_s=0.0) == read(trace)


def test_a_turn_that_waits_for_one_left_out_waits_for_the_recorded_time(trace: Path) -> None:
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    rows[5]["after"] = ["b:1", "gone:2"]  # the fifth request, b:4
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    turn = next(one for one in read(trace, begin_s=5.0) if one.key == "b:4")
    assert (turn.after, turn.not_before_s) == (("b:1",), 1.0)


def test_times_of_a_begun_trace_are_sped_up_with_it(trace: Path) -> None:
    fast = read(trace, begin_s=5.0, speed=2.0)
    assert [one.arrival_s for one in fast] == [0.0, 0.0, 0.5, 1.0, 2.0]
    assert [one.not_before_s for one in fast] == [0.0, 0.0, 0.5, 0.0, 2.0]
    assert len(read(trace, begin_s=5.0, limit=3)) == 3


@pytest.mark.parametrize("mode", ["cache_only", "replay", "fleet"])
def test_turns_after_the_beginning_hit_what_was_fed(mode: str, trace: Path, tmp_path: Path) -> None:
    found = api.run({
        "mode": mode, "workload": {"name": "trace", "path": str(trace), "begin_s": 5.0},
        "cache": {"block_size": SIZE, "num_blocks": 500}, "run": {"dir": str(tmp_path / mode), "progress": False},
    })  # fmt: skip
    assert (found["num_requests"], found["sessions_under_way"]) == (5, 2), found
    rows = [json.loads(line) for line in (tmp_path / mode / "requests.jsonl").read_text().splitlines()]
    cached = sorted(row["cached_tokens"] // SIZE for row in rows)
    assert cached == [0, 0, 0, 12, 20], "b hits the 12 blocks that it had, and a its 20"
    if mode == "fleet":
        assert found["loop"] == "closed"
        assert [row["arrival_s"] for row in rows][-1] == 4.0


@pytest.mark.parametrize("begin", [-1.0, float("inf"), float("nan")])
def test_a_beginning_that_is_no_time_is_refused(begin: float, trace: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload\.begin_s \(trace\) must be finite and at least 0"):
        read(trace, begin_s=begin)


def test_a_beginning_after_the_last_request_leaves_nothing(trace: Path) -> None:
    with pytest.raises(WorkloadError, match="makes 0 requests"):
        read(trace, begin_s=10.0)
