"""Pipes and devices given as inputs, disks that are full, and a working directory that is gone."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import command

from framework import registry
from framework.errors import ConfigError


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


def require(command: str) -> None:
    """Skip where the package with this command is not installed."""
    if command != "run" and command not in registry.names("command"):
        pytest.skip(f"no command {command} is installed")


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
    require(module)
    status = command(module)(words)
    said = capsys.readouterr().err
    assert status == 2, said
    assert "is a pipe" in said or "is a device" in said, said


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
    require(module)
    (elsewhere / "t.jsonl").write_text(TRACE * 3)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert command(module)(list(words)) == 1
    assert capsys.readouterr().err == f"{words[-1]}: No space left on device\n"
    assert [path.name for path in elsewhere.iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize("module", ["explain", "trace", "run"])
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
        require(module)
        assert command(module)(["describe", "x"]) == 2
    assert capsys.readouterr().err.startswith(f"{ConfigError.__name__}: the working directory was removed")
