"""Pipes and devices given as inputs, disks that are full, and a working directory that is gone."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import command
from report_runs import make_run

from framework.errors import ConfigError
from framework_report.write import write_report


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A command that waits for a pipe is a failure, not a hang."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("it waits for an input that never comes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


REPLAY = ("mode=replay", "run.progress=false", "run.dir=out", "workload=no_sharing")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("explain", ("fifo",)), ("explain", ("folder",)), ("trace", ("describe", "fifo")),
        ("curve", ("fifo",)), ("calibrate", ("fifo",)), ("explain", ("/dev/zero",)),
        ("run", ("mode=replay", "run.dir=out", "workload=trace", "workload.path=fifo")),
        ("run", ("mode=replay", "run.dir=out", "workload=prompts", "workload.path=fifo")),
        ("run", (*REPLAY, "replay.costs=fifo")),
        ("search", ("x", "seed=1,2", *REPLAY[:1], *REPLAY[3:])),
    ],
)  # fmt: skip
def test_a_pipe_or_device_as_an_input_is_refused_by_name(
    module: str, words: tuple[str, ...], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("folder", "sweeps/x"):
        (elsewhere / folder).mkdir(parents=True)
    for name in ("fifo", "folder/result.json", "sweeps/x/search.journal"):
        os.mkfifo(elsewhere / name)
    status = command(module)(words)
    said = capsys.readouterr().err
    assert status == 2, said
    assert "is a pipe" in said or "is a device" in said, said


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "provenance.json", "requests.jsonl"])
def test_a_report_does_not_wait_for_a_pipe(tmp_path: Path, name: str) -> None:
    for folder in ("a", "b"):
        make_run(tmp_path / folder, result={"hit_rate": 0.5}, eviction=folder)
    (tmp_path / "a" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "a" / name)
    assert write_report([tmp_path], tmp_path / "out").files[0].is_file()


def test_a_full_disk_names_the_file_of_a_report_and_leaves_nothing_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", result={"hit_rate": 0.5}, eviction="lru")
    real, left = os.fsync, 1

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert command("report")([str(tmp_path), "--to", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said == f"{tmp_path / 'out' / 'report.html'}: No space left on device\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".report"]


def test_no_folder_is_no_place_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report")([".", "--to", ""]) == 2
    assert "--to names no folder" in capsys.readouterr().err


TRACE = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'


@pytest.mark.parametrize(
    ("module", "words"),
    [("trace", ("convert", "t.jsonl", "--out", "out.jsonl")), ("curve", ("t.jsonl", "--plot", "out.svg")),
     ("curve", ("t.jsonl", "--csv", "out.csv")), ("curve", ("t.jsonl", "--json", "out.json")),
     ("trace", ("describe", "t.jsonl", "--json", "out.json"))],
)  # fmt: skip
def test_a_full_disk_is_the_status_of_a_failure_and_leaves_no_file(
    module: str, words: tuple[str, ...], elsewhere: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (elsewhere / "t.jsonl").write_text(TRACE * 3)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert command(module)(list(words)) == 1
    assert capsys.readouterr().err == f"{words[-1]}: No space left on device\n"
    assert [path.name for path in elsewhere.iterdir()] == ["t.jsonl"]


def test_a_full_disk_behind_a_recording_is_named_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("framework_traces.request_log.convert", full)
    assert command("trace")(["record", "log", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'out'}: No space left on device\n"


@pytest.mark.parametrize("module", ["explain", "trace", "curve", "report", "search", "run", "plugins"])
def test_a_working_directory_that_is_gone_is_said(
    module: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "gone").mkdir()
    os.chdir(elsewhere / "gone")
    (elsewhere / "gone").rmdir()
    if module == "run":
        from framework.run import call

        assert call(["mode=replay"]) == 2
    else:
        assert command(module)(["describe", "x"]) == 2
    assert capsys.readouterr().err.startswith(f"{ConfigError.__name__}: the working directory was removed")
