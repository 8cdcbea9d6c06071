"""What a user of Hydra types works: interpolations, environment variables, numbers as texts, a search path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework.config.check import parse


@pytest.mark.parametrize(
    ("word", "section", "key", "value"),
    [
        ("cache.num_blocks=${oc.env:NB,128}", "cache", "num_blocks", 128),
        ("cache.num_blocks=1e3", "cache", "num_blocks", 1000),
        ("run.events=yes", "run", "events", True),
        ("replay.step_s=${oc.env:STEP}", "replay", "step_s", 0.5),
        ("run.name=${hydra:job.name}", "run", "name", "kvlab"),
    ],
)
def test_a_value_is_converted(
    word: str, section: str, key: str, value: Any, elsewhere: Path, runs: Any, command: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("STEP", "0.5")
    status, _, err = command(word, "run.dir=out")
    assert (status, [run[section][key] for run in runs]) == (0, [value]), err
    assert type(runs[0][section][key]) is type(value)


def test_hydras_own_values_are_there_before_a_job_begins(elsewhere: Path) -> None:
    """In a process that has run nothing yet, as `--cfg job` and the plan of a sweep are."""
    code = "import sys; from framework.run import call; sys.exit(call(sys.argv[1:]))"
    sweep = "-m run.sweep=names mode=replay seed=1,2 workload=conversations backend=gather"
    for words in (["--cfg", "job"], [*sweep.split(), "run.report=false"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "run.name=${hydra:runtime.cwd}-${hydra:job.num}"],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert len([*(elsewhere / "sweeps" / "names").glob("*/result.json")]) == 2


def test_a_search_path_adds_a_folder(elsewhere: Path, runs: Any, command: Any) -> None:
    (elsewhere / "more" / "experiment").mkdir(parents=True)
    (elsewhere / "more" / "experiment" / "mine.yaml").write_text("# @package _global_\ncache: {num_blocks: 77}\n")
    status, _, err = command(f"hydra.searchpath=[file://{elsewhere}/more]", "+experiment=mine", "run.dir=out")
    assert (status, [run["cache"]["num_blocks"] for run in runs]) == (0, [77]), err


def test_a_job_runs_in_its_folder_where_hydra_is_asked_to_change_there(
    elsewhere: Path, command: Any, monkeypatch: Any
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("framework.api.run", lambda config, **begin: seen.append(os.getcwd()) or {"status": "ok"})
    for words in (("run.dir=out",), ("-m", "hydra.sweep.dir=out", "run.report=false", "run.progress=false")):
        status, _, err = command(*words, "hydra.job.chdir=true", "hydra.output_subdir=.hydra", "seed=3")
        assert (status, err) == (0, ""), err
    assert [Path(one).relative_to(elsewhere).parts[0] for one in seen] == ["out", "out"]
    assert len({Path(one, ".hydra", "config.yaml").read_text() for one in seen}) == 2, seen


def test_a_config_path_comes_before_the_framework_s(elsewhere: Path, command: Any, runs: Any) -> None:
    (elsewhere / "mine" / "eviction").mkdir(parents=True)
    (elsewhere / "mine" / "eviction" / "lru.yaml").write_text("name: fifo\n")
    status, _, err = command("--config-path", f"{elsewhere}/mine", "run.dir=out")
    assert (status, [run["eviction"]["name"] for run in runs]) == (0, ["fifo"]), err


def test_what_is_swept_may_be_a_parameter_of_the_sweeper(elsewhere: Path, command: Any, runs: Any) -> None:
    words = ("-m", "+hydra.sweeper.params={seed: '1,2', eviction: 'lru,fifo'}", "eviction=lfu", "run.report=false")
    status, _, err = command(*words, "run.progress=false")
    assert (status, [(run["seed"], run["eviction"]["name"]) for run in runs]) == (0, [(1, "lfu"), (2, "lfu")]), err


@pytest.mark.parametrize(
    ("words", "workload"),
    [
        (("mode=replay",), "conversations"),
        (("mode=hybrid", "mode.model=gemma-3-27b"), "conversations"),
        (("++mode=replay", "workload=agents"), "agents"),
        ((), "chat"),
    ],
)
def test_a_replay_alone_has_a_workload_that_can_be_replayed(
    words: tuple[str, ...], workload: str, elsewhere: Path, runs: Any, command: Any
) -> None:
    """The default one is text: `mode=replay` alone was refused."""
    if "mode=hybrid" in words:
        pytest.importorskip("framework_hybrid")
    status, _, err = command(*words, "run.dir=out")
    assert (status, [run["workload"]["name"] for run in runs]) == (0, [workload]), err
    mode = {"mode": {"name": "replay"}} if words else {}
    asked = {"workload": "agents"} if workload == "agents" else {}
    assert parse({**mode, **asked, "run": {"dir": "out"}}).workload.name == workload
