"""Files written beside and renamed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.files.atomic import beside, require_new, write_json, write_text


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with beside(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        temporary.write_text("half and half")
    assert path.read_text() == "half and half"
    assert os.listdir(tmp_path) == ["result.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "trace.jsonl"
    write_text(path, "good")

    def fail_midway() -> None:
        with beside(path) as temporary:
            temporary.write_text("bad")
            raise error("stopped midway")

    with pytest.raises(error, match="stopped midway"):
        fail_midway()
    assert path.read_text() == "good"
    assert os.listdir(tmp_path) == ["trace.jsonl"]


def test_a_device_is_written_to(tmp_path: Path) -> None:
    write_text(Path(os.devnull), "gone")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_text(Path("/dev/full"), "x")


def test_outputs_are_new_and_no_inputs_and_differ(tmp_path: Path) -> None:
    source, other = tmp_path / "in", tmp_path / "out"
    source.write_text("x")
    os.link(source, tmp_path / "twin")
    require_new(other, None, "-", "-", os.devnull, os.devnull, inputs=[source])
    with pytest.raises(ConfigError, match="exists already"):
        require_new(source)
    require_new(source, force=True)
    for same in (source, tmp_path / "twin", tmp_path / "x" / ".." / "in"):
        with pytest.raises(ConfigError, match="is what is read here"):
            require_new(same, inputs=[source], force=True)
    with pytest.raises(ConfigError, match="two outputs go to"):
        require_new(other, tmp_path / "x" / ".." / "out", force=True)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"status": "ok"})

    def full(handle: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*result\.json'$"):
        write_json(path, {"status": "failed"})
    assert json.loads(path.read_text()) == {"status": "ok"}
    assert os.listdir(tmp_path) == ["result.json"]
