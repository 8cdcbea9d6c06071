"""Pipes among the files of a report's runs, and disks that are full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from command_line import command
from report_runs import make_run

from framework_report.write import write_report


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
