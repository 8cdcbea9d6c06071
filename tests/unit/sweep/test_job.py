"""A job's folder: its name, when it is done, and what a kill at any moment leaves."""

from __future__ import annotations

import errno
import json
import queue
import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from framework.errors import RunDirectoryError
from framework.files.atomic import is_disk_failure
from framework.sweep.job import (
    JobDone,
    Outcome,
    begin,
    fail,
    folder_name,
    is_done,
    watched,
)
from framework.tracking.run_directory import RunDirectory


def test_a_job_killed_after_it_began_anew_is_not_done(tmp_path: Path) -> None:
    begin(tmp_path, ["seed=0"], "old")
    with RunDirectory(tmp_path) as run:
        run.write_result({"status": "ok"})
    assert is_done(tmp_path, "old")
    assert not is_done(tmp_path, "new")
    begin(tmp_path, ["seed=0"], "new")  # and killed here
    assert not is_done(tmp_path, "new"), "a result of another configuration counts for this one"
    assert not is_done(tmp_path, "old")


def test_a_job_that_another_process_did_since_it_was_looked_at_is_not_done_again(tmp_path: Path) -> None:
    def job(made_of: str) -> RunDirectory:
        on_begin = partial(begin, overrides=["seed=0"], wanted=made_of)
        return RunDirectory(tmp_path, overwrite=True, on_begin=on_begin)

    with job("d") as run:
        run.begin()
        run.write_result({"status": "ok", "hit_blocks": 7})
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with job("d") as run, pytest.raises(JobDone, match="result of this job already"):
        run.begin()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left
    with job("another") as run:
        run.begin()
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    "damage", [b"", b'{"status": "ok"', b"\x00\xff", b"[1]", b'{"status": "failed"}', b'{"status": "failed_requests"}']
)
def test_a_job_whose_result_is_damaged_is_not_done(tmp_path: Path, damage: bytes) -> None:
    begin(tmp_path, [], "c")
    (tmp_path / "result.json").write_bytes(damage)
    assert not is_done(tmp_path, "c")


def test_a_folder_s_name_is_short_safe_and_given_by_the_override_set_alone() -> None:
    rng = random.Random(0)
    words = ["eviction=lru", "cache.num_blocks=64", "model.path='/a very/long path/with ünïcode;rm -rf'", "seed=3"]
    words += ["workload.path=/data/mooncake/conversation.jsonl"]
    words += [f"workload.option_{index}={index}" for index in range(9)]
    name = folder_name(words)
    for _ in range(5):
        rng.shuffle(words)
        assert folder_name([f"+{word}" for word in words]) == name
    assert folder_name([*words, "run.sweep=s", "hydra.launcher.n_jobs=2", "tracker=wandb", "run.dir=/x"]) == name
    assert len(name) <= 80
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=,+-"), name
    assert "eviction=lru" in name
    assert "conversation.jsonl" in name
    others = [folder_name([*words, extra]) for extra in ("workload.z=1", "workload.z=2", "run.events=true")]
    assert len({name, *others}) == 4
    assert folder_name([]).startswith("default-")


def test_only_what_a_disk_does_counts_as_a_failure_to_write() -> None:
    assert is_disk_failure(RunDirectoryError(errno.ENOSPC, "full"))
    assert is_disk_failure(OSError(errno.EIO, "gone"))
    for error in (FileNotFoundError(errno.ENOENT, "x"), RunDirectoryError("in use by process 3"), KeyError("x")):
        assert not is_disk_failure(error)


Reports = queue.Queue[Outcome]


def said(reports: Reports) -> tuple[str, str]:
    """Folder and state of the next outcome."""
    outcome = reports.get(timeout=20)
    return Path(str(outcome.directory)).name, outcome.state


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name in "abc":
        begin(tmp_path / name, [f"eviction={name}"], "hash")
    return [tmp_path / name for name in "abc"]


def result(folder: Path, **facts: object) -> None:
    (folder / "result.json").write_text(json.dumps({"status": "ok", **facts}))


def test_a_job_is_reported_as_soon_as_its_files_say_that_it_ended(folders: list[Path]) -> None:
    reports = Reports()
    with watched(folders, reports.put, every_s=0.01) as finish:
        result(folders[1])
        assert said(reports) == ("b", "ok")
        fail(folders[0], "unavailable", "no such device")
        outcome = reports.get(timeout=20)
        assert (outcome.directory, outcome.state) == (str(folders[0]), "unavailable")
        assert outcome.took_s is not None
    for folder in folders:
        finish(Outcome(directory=str(folder), state="ok"))
    assert said(reports) == ("c", "ok")
    assert reports.empty(), "each once"


def test_a_job_that_its_launcher_and_its_files_end_at_once_is_reported_once(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports, returned = Reports(), threading.Event()

    def end_of(folder: Path, *before: Any) -> Outcome | None:
        if folder != folders[0] or returned.is_set():
            return None
        finish(Outcome(directory=str(folder), state="ok"))  # while its files are looked at
        returned.set()
        return Outcome(directory=str(folder), state="ok")

    monkeypatch.setattr("framework.sweep.job._end_of", end_of)
    with watched(folders, reports.put, every_s=0.01) as finish:
        assert returned.wait(20)
    assert (said(reports), reports.empty()) == (("a", "ok"), True)


def test_what_lay_in_a_folder_before_is_not_this_job_s_end(folders: list[Path]) -> None:
    result(folders[0])
    fail(folders[1], "failed", "an earlier run's")
    reports = Reports()
    with watched(folders, reports.put, every_s=0.01):
        result(folders[2])
        assert said(reports) == ("c", "ok")
        begin(folders[1], ["eviction=b"], "hash")
        result(folders[1])
        assert said(reports) == ("b", "ok")


def test_a_bad_result_waits_for_the_reason_and_then_for_the_launcher(folders: list[Path]) -> None:
    reports = Reports()
    with watched(folders, reports.put, every_s=0.01) as finish:
        result(folders[0], status="failed", reasons=["no"])
        (folders[1] / "result.json").write_text('{"status": "o')
        result(folders[2])
        assert said(reports) == ("c", "ok")
    finish(Outcome(directory=str(folders[0]), state="failed", status=1))
    finish(Outcome(directory=str(folders[2])))
    assert (said(reports), reports.empty()) == (("a", "failed"), True)
