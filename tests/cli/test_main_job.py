"""The user's literal commands, run from another directory: what they print, write and return, and what stops them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Command

from framework.results.reading import read_result
from framework_testing.checkpoints import make_checkpoint
from framework_workloads.lines import read_jsonl

SMALL = ("workload.num_requests=6", "workload.output_tokens=4", "workload.prefix_tokens=32", "run.check_requests=2")


def run(folder: Path, *words: str, timeout: float = 200.0) -> subprocess.CompletedProcess[str]:
    """`python -m framework.run WORDS` in `folder`."""
    command = [sys.executable, "-m", "framework.run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def result_of(command: Command, elsewhere: Path) -> Callable[..., dict[str, Any]]:
    """`result_of(*words)`: of that command line, run in this process; its files lie in `elsewhere` / "out"."""

    def ended(*words: str) -> dict[str, Any]:
        command.ok(*words, "run.dir=out")
        return dict(read_result(elsewhere / "out"))

    return ended


def test_the_command_without_arguments_ends_with_a_table(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("runs/serve/*/*/result.json")
    result = read_result(written.parent)
    for word in ("hit rate", "utilisation", "preemptions", "dense"):
        assert word in done.stdout.lower(), f"no {word!r} in\n{done.stdout}"
    assert (result["num_finished"], result["num_requests"]) == (48, 48), result
    assert (result["dense_checked"], result["dense_mismatches"]) == (8, 0), result
    assert result["num_forks"] > 0, result
    assert result["hit_rate"] > 0.5, result


@pytest.mark.slow
def test_the_command_with_prefix_and_triton_does_the_same_interpreted(tmp_path: Path) -> None:
    pytest.importorskip("framework_triton")
    done = run(tmp_path, "+allocator=prefix", "+backend=triton", "run.dir=out")
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    assert (result["num_finished"], result["dense_mismatches"]) == (48, 0), result
    assert (result["allocator"], result["backend"]) == ("prefix", "triton"), result
    assert "interpret" in done.stderr.lower(), done.stderr


def test_a_small_job_on_another_allocator_leaves_all_its_files_and_its_log(
    result_of: Callable[..., dict[str, Any]], elsewhere: Path
) -> None:
    result = result_of(*SMALL, "+allocator=prefix", "+eviction=fifo", "+hash=xxh64", "run.events=true",
                       "cache.num_blocks=40")  # fmt: skip
    assert (result["allocator"], result["eviction"], result["hash"]) == ("prefix", "fifo", "xxh64")
    assert (result["num_finished"], result["dense_mismatches"]) == (6, 0), result
    out = elsewhere / "out"
    for name in ("config.yaml", "metrics.jsonl", "requests.jsonl", "provenance.json", "events.jsonl"):
        assert (out / name).stat().st_size > 0, f"{name} is empty"
    events = read_jsonl(out / "events.jsonl")
    kinds = {event["event"] for event in events}
    assert {"arrive", "admit", "step", "finished"} <= kinds, kinds
    assert sum(event["event"] == "finished" for event in events) == 6
    steps = read_jsonl(out / "metrics.jsonl")
    assert len(steps) == result["num_steps"], (len(steps), result["num_steps"])


def test_a_file_of_json_lines_is_served_and_one_that_never_fits_is_rejected_alone(
    result_of: Callable[..., dict[str, Any]], elsewhere: Path
) -> None:
    lines = [
        {"prompt": "What is a block?", "max_tokens": 3},
        {"prompt": "again " * 400, "max_tokens": 3},
        {"prompt": "Twice", "max_tokens": 4, "n": 2, "temperature": 0.7},
    ]
    (elsewhere / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = result_of("workload=questions.jsonl", "cache.num_blocks=20")
    rows = read_jsonl(elsewhere / "out" / "requests.jsonl")
    assert [row["status"] for row in rows] == ["finished", "rejected", "finished"], rows
    assert "320" in rows[1]["reason"], rows[1]
    assert [len(row["completions"]) for row in rows] == [1, 0, 2], rows
    assert (result["num_finished"], result["num_rejected"], result["num_failed"]) == (2, 1, 0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama", num_hidden_layers=2)


@pytest.mark.slow
def test_a_checkpoint_with_its_own_tokenizer_serves_recorded_agents_with_their_prefixes_hit(
    result_of: Callable[..., dict[str, Any]], checkpoint: Path, traces: Path
) -> None:
    path = traces / "lmcache-agent-trace_text.tar.xz"
    if not path.exists():
        pytest.skip(f"no {path.name} among the traces")
    result = result_of(
        f"model={checkpoint}", "workload=agent_text", f"workload.path={path}", "workload.limit=10",
        "workload.skip_empty=true",
        "workload.max_prompt_chars=1500", "workload.max_tokens=2", "run.check_requests=3", "cache.num_blocks=700",
        "engine.max_batch_requests=1",
    )  # fmt: skip
    assert result["num_finished"] == 10, result
    assert (result["dense_checked"], result["dense_mismatches"]) == (3, 0), result
    assert result["hit_tokens"] > 0.5 * result["prompt_tokens"], (result["hit_tokens"], result["prompt_tokens"])
