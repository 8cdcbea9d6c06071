"""What a run leaves behind, in every mode, when it ends well and when it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic_workloads import mooncake

from framework import api
from framework.errors import ConfigError, FrameworkError
from framework.interfaces.tracker import RunLabel, Tracker
from framework.modes import session as sessions
from framework.results.reading import read_result, what_went_wrong
from framework_workloads.lines import read_jsonl

SERVE: dict[str, Any] = {
    "workload": {"name": "chat", "num_requests": 3, "output_tokens": 3},
    "cache": {"num_blocks": 256},
}
EXECUTORS = ("none", "roofline")


class Followed(Tracker):
    """Remembers how the run ended."""

    ended: list[tuple[bool, Mapping[str, Any]]]

    def __init__(self) -> None:
        self.ended = []

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        pass

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        pass

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        self.ended.append((failed, dict(summary)))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    tracker = Followed()
    monkeypatch.setattr(sessions, "registry", SimpleNamespace(build=lambda kind, name, options: tracker))
    return tracker


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return mooncake(tmp_path / "trace.jsonl", [[1, 2, 3 + i] for i in range(6)])


def replay(trace: Path, executor: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "mode": "replay",
        "executor": executor,
        "workload": {"name": "trace", "path": str(trace)},
        "cache": {"num_blocks": 8, "block_size": 512},
        "run": {"dir": str(folder), "progress": False},
        **more,
    }


def serve(folder: Path, **run: Any) -> dict[str, Any]:
    return {**SERVE, "run": {"dir": str(folder), "progress": False, **run}}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_replay_that_raises_leaves_a_failed_result_and_a_failed_tracker(
    trace: Path, tmp_path: Path, followed: Followed, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("broken in the middle")

    monkeypatch.setattr("framework.modes.replay.feed", broken)
    with pytest.raises(ArithmeticError):
        api.run(replay(trace, executor, tmp_path / "run"))
    result = read_result(tmp_path / "run")
    assert result["status"] == "failed", result
    assert result["reasons"][0].startswith("internal error: ArithmeticError: broken in the middle"), result
    assert [failed for failed, _ in followed.ended] == [True]
    assert not (tmp_path / "run" / "lock").exists()


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"num_failed": 1}, "failed_requests"),
        ({"num_rejected": 3, "num_finished": 0}, "failed_requests"),
        ({"dense_mismatches": 1}, "faulty"),
        ({"num_rejected": 1}, "ok"),
    ],
)
def test_a_replay_with_failed_requests_is_no_success_for_trackers_or_whoever_reads_its_status(
    trace: Path, tmp_path: Path, followed: Followed, monkeypatch: pytest.MonkeyPatch, facts: dict[str, int], status: str
) -> None:
    from framework.engine.metrics import Metrics

    real = Metrics.summary
    monkeypatch.setattr(Metrics, "summary", lambda *args, **given: real(*args, **given) | facts)
    said = api.run(replay(trace, "none", tmp_path / "run"))
    assert [failed for failed, _ in followed.ended] == [status != "ok"]
    result = read_result(tmp_path / "run")
    assert (said["status"], result["status"]) == (status, status)
    assert bool(what_went_wrong(result)) == (status != "ok")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_run_that_cannot_start_leaves_an_earlier_one_as_it_was(trace: Path, tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "run"
    api.run(replay(trace, executor, folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    broken = [
        replay(tmp_path / "typo.jsonl", executor, folder),
        replay(mooncake(tmp_path / "empty.jsonl", []), executor, folder),
        {**serve(folder), "model": {"name": "checkpoint", "path": str(tmp_path / "nowhere")}},
        {**serve(folder), "eviction": {"name": "belady"}},
    ]
    for config in broken:
        with pytest.raises(FrameworkError):
            api.run(config)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, config


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_replay_writes_a_line_a_request(trace: Path, tmp_path: Path, executor: str) -> None:
    result = api.run(replay(trace, executor, tmp_path / "run"))
    rows = read_jsonl(tmp_path / "run" / "requests.jsonl")
    assert [row["request"] for row in rows] == list(range(6))
    assert sum(row["cached_tokens"] for row in rows) == result["hit_tokens"]
    assert sum(row["prompt_tokens"] for row in rows) == result["prompt_tokens"]
    assert {"tenant", "session", "arrival_s"} <= set(rows[0])
    config = replay(trace, executor, tmp_path / "quiet")
    config["run"]["requests"] = False
    api.run(config)
    assert not (tmp_path / "quiet" / "requests.jsonl").exists()


def test_a_served_request_carries_who_asked_its_logprobs_and_whether_the_dense_model_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"prompt": "one two three", "tenant": "t", "priority": 2, "session": "s", "key": "first", "max_tokens": 3}
    (tmp_path / "p.jsonl").write_text(json.dumps({**asked, "logprobs": 2}) + "\n" + json.dumps({"prompt": "four"}))
    config = {**serve(tmp_path / "run"), "workload": {"name": "prompts", "path": str(tmp_path / "p.jsonl")}}
    api.run(config)
    first, second = read_jsonl(tmp_path / "run" / "requests.jsonl")
    assert {key: first[key] for key in ("key", "tenant", "priority", "session", "dense")} == {
        "key": "first", "tenant": "t", "priority": 2, "session": "s", "dense": "equal",
    }  # fmt: skip
    completion = first["completions"][0]
    assert len(completion["token_logprobs"]) == len(completion["tokens"]) == 3
    assert [len(top) for top in completion["top_logprobs"]] == [2, 2, 2]
    assert completion["cumulative_logprob"] == pytest.approx(sum(completion["token_logprobs"]))
    assert "token_logprobs" not in second["completions"][0]


def test_a_result_says_which_requests_differ_from_the_dense_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from framework.modes import dense_check

    real = dense_check._compare

    def differing(llm: Any, request: Any) -> Any:
        found = real(llm, request)
        return replace(found, differs_at=2) if request.number == 1 else found

    monkeypatch.setattr(dense_check, "_compare", differing)
    result = api.run(serve(tmp_path / "run"))
    assert (result["dense_mismatches"], result["dense_mismatched_requests"]) == (1, [1])
    rows = read_jsonl(tmp_path / "run" / "requests.jsonl")
    assert [row["request"] for row in rows if row["dense"] == "differs"] == [1], rows
    assert rows[1]["dense_differs_at"] == 2


def test_a_replayed_recording_counts_steps_and_says_so(tmp_path: Path) -> None:
    api.run(serve(tmp_path / "served", record=True))
    recording = {"name": "recording", "path": str(tmp_path / "served" / "recording.jsonl")}
    result = api.run(replay(tmp_path, "none", tmp_path / "run", workload=recording, cache={"num_blocks": 256}))
    seconds = [key for key in result if key.endswith("_s") or "_s_p" in key or "per_s" in key]
    assert seconds == ["replay_s"], "the wall time of the replay itself"
    assert "engine_overhead" not in result
    assert result["wall_steps"] == result["num_steps"]
    rows = read_jsonl(tmp_path / "run" / "requests.jsonl")
    assert all(row["finished_steps"] > row["arrival_steps"] for row in rows)
    assert "time_steps" in read_jsonl(tmp_path / "run" / "metrics.jsonl")[0]
    foreseeing = {"workload": recording, "cache": {"num_blocks": 256}, "eviction": {"name": "belady"}}
    with pytest.raises(ConfigError, match="workload=recording does not"):
        api.run(replay(tmp_path, "none", tmp_path / "b", **foreseeing))


@pytest.mark.parametrize("mode", ["serve", "replay"])
def test_a_longest_sequence_that_cannot_be_is_said_at_the_start_and_in_the_result(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    config = replay(trace, "none", tmp_path / "run") if mode == "replay" else serve(tmp_path / "run")
    blocks, size = (8, 512) if mode == "replay" else (32, 16)
    config["cache"] = {"num_blocks": blocks, "block_size": size}
    pool = blocks * size
    for asked in (pool + 1, pool, None):
        api.run({**config, "engine": {"max_model_len": asked}, "run": {**config["run"], "overwrite": True}})
        err, result = capsys.readouterr().err, read_result(tmp_path / "run")
        more = asked == pool + 1
        assert (f"engine.max_model_len={asked} is more than can be" in err, bool(err)) == (more, more), err
        assert not more or f"raise cache.num_blocks: the pool's {blocks} blocks hold {pool} tokens" in err, err
        assert (result["max_model_len"] <= pool, result.get("max_model_len_asked")) == (True, asked if more else None)
    if mode == "serve":
        api.run({**config, "cache": {"num_blocks": 3, "block_size": 16}})
        assert "the workload's longest request of" in capsys.readouterr().err


def test_every_result_says_what_was_run_when_and_where(trace: Path, tmp_path: Path) -> None:
    result = api.run(replay(trace, "none", tmp_path / "run"))
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert result["trace_sha256"] == provenance["inputs"][0]["sha256"]
    assert result["trace"] == str(trace)
    assert result["command"] == provenance["command"] != ""
    assert result["started_at"] == provenance["started_at"]
    assert result["machine"]


@pytest.mark.parametrize(("method", "steps", "requests"), [("step", 2, 3), ("submit", 0, 2)])
def test_an_interrupt_keeps_what_there_is(
    tmp_path: Path, followed: Followed, monkeypatch: pytest.MonkeyPatch, method: str, steps: int, requests: int
) -> None:
    from framework.engine.engine import Engine

    real, calls = getattr(Engine, method), 0

    def interrupted(self: Engine, *args: Any, **facts: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(self, *args, **facts)

    monkeypatch.setattr(Engine, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        api.run(serve(tmp_path / "run"))
    result = read_result(tmp_path / "run")
    assert (result["status"], result["reasons"]) == ("interrupted", ["interrupted by Ctrl-C"])
    assert (result["num_steps"], result["dense_checked"]) == (steps, None)
    assert len(read_jsonl(tmp_path / "run" / "requests.jsonl")) == requests
    assert [failed for failed, _ in followed.ended] == [True]
