"""A run directory: one owner, whole files, and nothing lost when the disk is full or the run is killed."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework.errors import ConfigError, RunDirectoryError, RunDirectoryInUse
from framework.files.lock import Lock
from framework.results.reading import read_result
from framework.tracking.provenance import collect_provenance
from framework.tracking.run_directory import RunDirectory
from framework_workloads.lines import PartialLineWarning, read_jsonl

HOLD = """
import sys, time
from framework.tracking.run_directory import RunDirectory
run = RunDirectory(sys.argv[1])
step = 0
while True:
    run.log("metrics.jsonl", {"step": step, "text": "x" * 200})
    step += 1
    if step == 2000:
        run.flush()
        print("ready", flush=True)
"""


def test_a_run_leaves_every_file_and_lets_go_of_the_directory(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "a" / "run") as run:
        run.write_config({"seed": 1, "cache": {"block_size": 16, "path": Path("x")}})
        run.write_provenance(collect_provenance(components=[("eviction", "lru")], seeds={"run": 1}, device="cpu"))
        for step in range(3):
            run.log("metrics.jsonl", {"step": step, "loss": float("nan")})
        run.log("events.jsonl", {"event": "evict", "block": 3})
        run.log("requests.jsonl", {"key": "r1"})
        run.write_result({"hit_rate": 0.5, "bad": float("inf")})
        assert (run.path / "lock").exists()
    files = sorted(path.name for path in run.path.iterdir())
    assert files == [
        ".run-directory",
        "config.yaml", "events.jsonl", "metrics.jsonl", "provenance.json", "requests.jsonl", "result.json",
    ], files  # fmt: skip
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == {
        "seed": 1,
        "cache": {"block_size": 16, "path": "x"},
    }
    assert read_jsonl(run.path / "metrics.jsonl") == [{"step": step, "loss": None} for step in range(3)]
    assert read_result(run.path) == {"hit_rate": 0.5, "bad": None}
    provenance = json.loads((run.path / "provenance.json").read_text())
    assert provenance["components"]["eviction"]["distribution"] == "kvcache-framework"
    assert provenance["seeds"] == {"run": 1}


def test_two_runs_cannot_hold_one_directory(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.log("metrics.jsonl", {"step": 0})
        with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()}"):
            RunDirectory(tmp_path)
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 1, "the refused run harmed the first one's file"


def test_a_killed_run_leaves_readable_lines_and_its_lock_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(RunDirectoryError, match=f"in use by process {child.pid}"):
            RunDirectory(tmp_path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    steps = [record["step"] for record in read_jsonl(tmp_path / "metrics.jsonl")]
    assert steps == list(range(len(steps)))
    assert len(steps) >= 2000
    with pytest.raises(RunDirectoryError, match="did not finish"):
        read_result(tmp_path)
    with RunDirectory(tmp_path) as run:
        run.begin()
        assert not (tmp_path / "metrics.jsonl").exists(), "an unfinished run's lines would mix with the new ones"


def test_a_lock_that_its_holder_removed_while_it_was_opened_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, path = os.open, tmp_path / "lock"

    def opened_too_early(*given: Any) -> int:
        handle = opened(*given)
        monkeypatch.setattr(os, "open", opened)
        path.unlink()
        return handle

    monkeypatch.setattr(os, "open", opened_too_early)
    lock = Lock(path)
    assert path.exists()
    with pytest.raises(RunDirectoryInUse):
        Lock(path)
    lock.release()
    assert not path.exists()


def test_a_finished_run_is_replaced_only_on_request(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.log("metrics.jsonl", {"step": 0})
        run.write_result({"a": 1})
    with pytest.raises(RunDirectoryError, match="holds a finished run"):
        RunDirectory(tmp_path)
    assert read_result(tmp_path) == {"a": 1}
    with RunDirectory(tmp_path, overwrite=True) as run:
        assert read_result(tmp_path) == {"a": 1}, "the run has not begun"
        run.begin()
        assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("name", ["notes.txt", "config.yaml", "result.json", "plot.png"])
def test_a_folder_with_files_that_are_no_runs_is_refused_and_left_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"holds files that are no run's \({name}\); nothing was changed"):
        RunDirectory(tmp_path, overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_files_put_beside_a_run_are_left_alone(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_result({"a": 1})
    (tmp_path / "notes.txt").write_text("mine")
    with RunDirectory(tmp_path, overwrite=True) as run:
        run.begin()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_a_sweep_and_hydra_leave_first_is_not_foreign(tmp_path: Path) -> None:
    for name in ("job.json", "failure.json", "kvlab.log", ".job.json.17.tmp"):
        (tmp_path / name).write_text("")
    (tmp_path / ".hydra").mkdir()
    RunDirectory(tmp_path).close()


@pytest.mark.parametrize("path", ["", " ", ".", "..", "/", "here/.."])
def test_the_working_directory_is_no_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(ConfigError, match="is no folder of its own"):
        RunDirectory(path, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["here"]


def test_a_device_is_no_run_directory() -> None:
    with pytest.raises(ConfigError, match="'/dev/null' is no folder"):
        RunDirectory("/dev/null")


def test_a_full_disk_is_a_typed_error_that_keeps_what_fitted(tmp_path: Path) -> None:
    # RLIMIT_FSIZE stands for a full disk: the write that crosses it is cut short, the next one fails.
    script = f"""
import resource, signal
from framework.errors import ConfigError, RunDirectoryError, RunDirectoryInUse
from framework.tracking.run_directory import RunDirectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = RunDirectory({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    for step in range(100_000):
        run.log("metrics.jsonl", {{"step": step, "text": "x" * 100}})
except RunDirectoryError as error:
    print(error)
try:
    run.write_result({{"text": "x" * 200_000}})
except RunDirectoryError as error:
    print(error)
run.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "metrics.jsonl cannot be written" in first, done.stdout
    assert "result.json cannot be written" in second, done.stdout
    with pytest.warns(PartialLineWarning):
        steps = [record["step"] for record in read_jsonl(tmp_path / "metrics.jsonl")]
    assert steps == list(range(len(steps)))
    assert 700 < len(steps) < 900, f"100 000 bytes hold about 800 lines, kept {len(steps)}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run-directory", "metrics.jsonl"], (
        "a temporary file or lock was left"
    )


@pytest.mark.parametrize("make_parent", [lambda path: path.write_text("a file"), lambda path: path.mkdir(mode=0o500)])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, make_parent) -> None:
    parent = tmp_path / "parent"
    make_parent(parent)
    if parent.is_dir() and os.access(parent, os.W_OK):
        pytest.skip("this user may write anywhere")
    with pytest.raises(RunDirectoryError, match="parent"):
        RunDirectory(parent / "run")


def test_lines_reach_the_disk_without_a_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("framework.tracking.run_directory.time.monotonic", lambda: now)
    run = RunDirectory(tmp_path)
    run.log("metrics.jsonl", {"step": 0})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"", "a step should not cost a system call"
    now += 1.5
    run.log("metrics.jsonl", {"step": 1})
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 2
    run.close()


def test_a_refused_run_and_a_failed_lock_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == [], "it never began"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunDirectoryError, match="No space left"):
        RunDirectory(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
