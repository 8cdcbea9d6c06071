"""`python -m framework.explain`: on a trace, on a run, and on two of either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework import api
from framework.explain import main

PROMPTS = [[1, 2], [3], [4, 5], [6], [1, 2], [3], [1, 2, 7]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    lines = [
        {"timestamp": 1000 * at, "input_length": 512 * len(ids) - 3, "output_length": 4, "hash_ids": ids}
        for at, ids in enumerate(PROMPTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def run(trace: Path, folder: Path, **more: Any) -> str:
    config = {
        "mode": "replay", "executor": "cache_only", "workload": {"name": "trace", "path": str(trace)},
        "cache": {"num_blocks": 4, "block_size": 512}, "run": {"dir": str(folder), "explain": True}, **more,
    }  # fmt: skip
    api.run(config)
    return str(folder)


def test_a_run_and_its_trace_are_explained_alike(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(trace, tmp_path / "run")
    capsys.readouterr()
    from_run = json.loads(said(capsys, folder, "--json"))
    from_trace = json.loads(said(capsys, str(trace), "--num-blocks", "4", "--block-tokens", "512", "--json"))
    assert from_run == from_trace
    assert sum(from_run["blocks"].values()) == sum(map(len, PROMPTS))
    assert from_run["blocks"]["new"] == 7
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["missed_evicted_tokens"] == from_run["tokens"]["evicted"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    for row in rows:
        missed = sum(value for key, value in row.items() if key.startswith("missed_"))
        assert row["cached_tokens"] + missed == row["prompt_tokens"], row


def test_what_two_sessions_count_alike_is_new_in_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, line = tmp_path / "runs.jsonl", {"timestamp": 0, "input_length": 320, "output_length": 4, "runs": [[1, 5]]}
    path.write_text("".join(json.dumps(line | {"scope": scope}) + "\n" for scope in "ab"))
    found = json.loads(said(capsys, str(path), "--num-blocks", "20", "--json"))
    assert {cause: count for cause, count in found["blocks"].items() if count} == {"new": 10}
    full = {"mode": "replay", "executor": "none", "workload": {"name": "trace", "path": str(path)}}
    api.run(
        full | {"cache": {"num_blocks": 40, "block_size": 64}, "run": {"dir": str(tmp_path / "r"), "explain": True}}
    )
    capsys.readouterr()
    found = json.loads(said(capsys, str(tmp_path / "r"), "--json"))
    assert {cause: count for cause, count in found["blocks"].items() if count} == {"new": 8, "end of prompt": 2}


def test_two_policies_are_set_side_by_side(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = json.loads(said(capsys, str(trace), "--num-blocks", "4", "--eviction", "lru,optimum", "--json"))
    against = both["against"]
    gained = both["runs"]["optimum"]["tokens"]["hit"] - both["runs"]["lru"]["tokens"]["hit"]
    assert gained > 0
    assert against["second_wins"]["tokens"] - against["first_wins"]["tokens"] == gained
    for side in ("first_wins", "second_wins"):
        assert sum(against[side]["missed_by_the_other"].values()) == against[side]["tokens"]
    text = said(capsys, str(trace), "--num-blocks", "4", "--eviction", "lru,optimum")
    assert "optimum hits more than lru in" in text


def test_what_cannot_be_explained_is_said_in_a_sentence(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothere")]) == 2
    assert "nothere: cannot be read" in capsys.readouterr().err
    assert main([str(trace)]) == 2
    assert "give --num-blocks" in capsys.readouterr().err
    folder = run(trace, tmp_path / "run", run={"dir": str(tmp_path / "run")})
    capsys.readouterr()
    assert main([folder]) != 0
    assert "run.explain=true" in capsys.readouterr().err
    assert "missed_new_tokens" not in (tmp_path / "run" / "requests.jsonl").read_text()
