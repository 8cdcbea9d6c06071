"""`python -m framework explain`: on a trace, on a run, and on two of either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import command

from framework import api

main = command("explain")

PROMPTS = [[1, 2], [3], [4, 5], [6], [1, 2], [3], [1, 2, 7]]


def written(path: Path, prompts: list[list[int]], less: int = 3) -> Path:
    """A trace of these prompts; each last block lacks `less` tokens."""
    lines = [
        {"timestamp": 1000 * at, "input_length": 512 * len(ids) - less, "output_length": 4, "hash_ids": ids}
        for at, ids in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "small.jsonl", PROMPTS)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def run(trace: Path, folder: Path, **more: Any) -> str:
    config = {
        "mode": "cache_only", "workload": {"name": "trace", "path": str(trace)},
        "cache": {"num_blocks": 4, "block_size": 512}, "run": {"dir": str(folder)}, "observers": ["explain"], **more,
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


DAMAGES = [
    ("result.json", '"hit_blocks": ', '"hit_blocks": 1e3, "was": ', "result.json: hit_blocks must be"),
    ("requests.jsonl", '"request":1,', '"request":"x",', "requests.jsonl:2: request must be"),
    ("requests.jsonl", '"missed_new_tokens":', f'"missed_new_tokens":1{"0" * 30}', "missed_new_tokens must be"),
    ("regret.jsonl", '"depth":', '"was":', "regret.jsonl:1: depth must be a whole number of 0 to 2^53, found none"),
    ("regret.jsonl", '"tokens":', '"tokens":-', "regret.jsonl:1: tokens must be"),
    ("regret.jsonl", '"turn":', '"turn":"x","was":', "regret.jsonl:1: turn must be"),
]


def test_a_damaged_file_of_a_run_is_named_with_its_line(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(trace, tmp_path / "run")
    for name, old, new, said in DAMAGES:
        path = tmp_path / "run" / name
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new, 1))
        assert main([folder]) == 2
        assert said in capsys.readouterr().err
        path.write_text(text)


def test_a_stream_given_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = tmp_path / "stream"
    stream.write_text('{"format": "kvlab-kv-events", "version": 1}\n')
    assert main([str(stream), str(stream)]) == 2
    assert "are both streams of KV events" in capsys.readouterr().err


def test_what_two_sessions_count_alike_is_new_in_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, line = tmp_path / "runs.jsonl", {"timestamp": 0, "input_length": 320, "output_length": 4, "runs": [[1, 5]]}
    path.write_text("".join(json.dumps(line | {"scope": scope}) + "\n" for scope in "ab"))
    found = json.loads(said(capsys, str(path), "--num-blocks", "20", "--json"))
    assert {cause: count for cause, count in found["blocks"].items() if count} == {"new": 10}
    full = {"mode": "replay", "executor": "none", "workload": {"name": "trace", "path": str(path)}}
    cache, run = {"num_blocks": 40, "block_size": 64}, {"dir": str(tmp_path / "r")}
    api.run({**full, "cache": cache, "run": run, "observers": ["explain"]})
    capsys.readouterr()
    found = json.loads(said(capsys, str(tmp_path / "r"), "--json"))
    assert {cause: count for cause, count in found["blocks"].items() if count} == {"new": 8, "end of prompt": 2}


def test_two_policies_are_set_side_by_side(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = json.loads(said(capsys, str(trace), "--num-blocks", "4", "--eviction", "lru,optimum", "--json"))
    against = both["against"]
    assert (against["first"], against["second"]) == ("lru", "optimum")
    gained = both["runs"]["optimum"]["tokens"]["hit"] - both["runs"]["lru"]["tokens"]["hit"]
    assert gained > 0
    assert against["second_wins"]["tokens"] - against["first_wins"]["tokens"] == gained
    for side in ("first_wins", "second_wins"):
        assert sum(against[side]["missed_by_the_other"].values()) == against[side]["tokens"]
    text = said(capsys, str(trace), "--num-blocks", "4", "--eviction", "lru,optimum")
    assert "optimum hits more than lru in" in text
    assert "lru hits more than optimum in" in text


BRANCHES = [[1, 2, 3], [1, 4], [5, 6], [1, 2, 7], [8], [5, 6, 9], [1, 4, 3], [1, 2, 3], [5, 9], [1, 4, 7]]


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        ("--limit 6", {"workload": {"limit": 6}}),
        ("--leaf-first --eviction fifo", {"mode": {"name": "cache_only", "leaf_first": True}, "eviction": "fifo"}),
        ("--full-blocks-only", {"mode": {"name": "cache_only", "full_blocks_only": True}}),
        ("--eviction random --seed 4", {"eviction": "random", "seed": 4}),
    ],
)
def test_each_option_is_that_of_a_run_and_changes_what_is_said(
    words: str, sections: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "branches.jsonl", BRANCHES * 3)
    workload = {"name": "trace", "path": str(path), **sections.pop("workload", {})}
    folder = run(path, tmp_path / "run", **sections, workload=workload)
    capsys.readouterr()
    from_run = json.loads(said(capsys, folder, "--json"))
    plain = [str(path), "--num-blocks", "4", "--json"]
    assert json.loads(said(capsys, *plain, *words.split())) == from_run
    without = [word for word in words.split() if word in ("--eviction", "fifo", "random")]
    assert json.loads(said(capsys, *plain, *without)) != from_run, "an option that changes nothing shows nothing"


def test_the_table_has_tokens_their_shares_and_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path / "t.jsonl", BRANCHES, less=500)
    found = json.loads(said(capsys, str(trace), "--num-blocks", "4", "--json"))
    text = said(capsys, str(trace), "--num-blocks", "4")
    for outcome in ("new", "evicted"):
        tokens, blocks = found["tokens"][outcome], found["blocks"][outcome]
        row = [outcome, f"{tokens:,}", f"{100 * tokens / sum(found['tokens'].values()):.1f}", str(blocks)]
        assert row in [line.split() for line in text.splitlines()], (row, text)


def test_what_cannot_be_explained_is_said_in_a_sentence(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothere")]) == 2
    assert "nothere: cannot be read" in capsys.readouterr().err
    assert main([str(trace)]) == 2
    assert "give --num-blocks" in capsys.readouterr().err
    folder = run(trace, tmp_path / "run", observers=[])
    capsys.readouterr()
    assert main([folder]) != 0
    assert "observers=[explain]" in capsys.readouterr().err
    assert "missed_new_tokens" not in (tmp_path / "run" / "requests.jsonl").read_text()
