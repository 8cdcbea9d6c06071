"""Sweeps over a choice and its options, and names that say what varies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.config.hydra.overrides import normalise
from framework.errors import ConfigError
from framework.sweep.job import folder_name, folder_tail

WORDS = (
    "-m", "mode=replay", "workload=conversations", "workload.num_sessions=4", "backend=gather",
    "run.report=false", "run.sweep=s",
)  # fmt: skip


def _jobs(folder: Path) -> list[dict[str, Any]]:
    """Name and options of the eviction policy of each job."""
    import yaml

    found = [yaml.safe_load(path.read_text())["eviction"] for path in (folder / "sweeps" / "s").glob("*/config.yaml")]
    return sorted([{key: one[key] for key in ("name", "k") if key in one} for one in found], key=str)


def test_a_choice_takes_the_options_that_it_knows(elsewhere: Path, command: Any) -> None:
    """`eviction=lru,lru_k eviction.k=2,3` was refused: lru has no k."""
    for _ in range(2):
        status, _, err = command(*WORDS, "eviction=lru,lru_k", "eviction.k=2,3")
        assert status == 0, err
        assert "eviction.k is left out where the choice has no such option: lru\n" in err
    assert _jobs(elsewhere) == [{"name": "lru"}, {"name": "lru_k", "k": 2}, {"name": "lru_k", "k": 3}]
    assert "3 of 3 done before" in err


def test_an_option_that_no_choice_knows_is_refused(elsewhere: Path, command: Any) -> None:
    status, _, err = command(*WORDS, "eviction=lru,fifo", "eviction.k=2,3")
    assert (status, "has no option 'k'" in err) == (2, True), err


def test_a_choice_is_a_mapping_with_its_options(elsewhere: Path, command: Any, runs: Any) -> None:
    assert command("eviction={name: lru_k, k: 3}", "run.dir=out")[0] == 0
    assert [(run["eviction"]["name"], run["eviction"].get("k")) for run in runs] == [("lru_k", 3)]
    status, _, err = command(*WORDS, "eviction={name: lru_k, k: 3},lru")
    assert status == 0, err
    assert [(run["eviction"]["name"], run["eviction"].get("k")) for run in runs[1:]] == [("lru_k", 3), ("lru", None)]
    with pytest.raises(ConfigError, match="the eviction is chosen by its name"):
        normalise(["eviction={k: 3}"])


def test_a_sweep_of_nothing_is_one_run_by_default(elsewhere: Path, command: Any, runs: Any) -> None:
    status, _, err = command("-m")
    assert (status, len(runs)) == (0, 1), err


def test_the_folder_of_a_job_says_what_varies(elsewhere: Path, command: Any) -> None:
    """Names were cut after 80 characters: two jobs that differ in the pool's size looked alike."""
    fixed = (
        "allocator=prefix_cow",
        "hash=xxh3_128",
        "eviction=lru",
        "cache.block_size=32",
        "workload.system_tokens=64",
    )
    words = (*WORDS, *fixed, "workload.user_tokens=16", "run.events=true")
    status, _, err = command(*words, "cache.num_blocks=64,128")
    assert status == 0, err
    names = {path.parent.name for path in (elsewhere / "sweeps" / "s").glob("*/result.json")}
    assert {name.partition(",")[0] for name in names} == {"num_blocks=64", "num_blocks=128"}, names
    status, _, err = command(*words, "cache.num_blocks=64,128", "workload.user_tokens=16,24")  # other keys vary now
    assert "2 of 4 done before" in err, err
    job = json.loads(next((elsewhere / "sweeps" / "s").glob("*/job.json")).read_text())
    assert not any("hydra" in word for word in job["overrides"]), job


def test_no_varied_key_is_left_out_of_a_name() -> None:
    words = [f"workload.a_long_name_of_an_option_{index}={index}" for index in range(4)] + ["eviction=lru"]
    varied = {word.partition("=")[0] for word in words[:4]}
    name = folder_name(words, varied)
    assert all(f"option_{index}={index}" in name for index in range(4)), name
    assert len(folder_name(words * 30 + ["a.b=" + "x" * 300], {"a.b", *varied})) < 255
    assert name.endswith(folder_tail(reversed(words)))  # type: ignore[arg-type]
