"""Real traces, and the command line from a working directory that is not the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import Command


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces, KVLAB_TRACES; skips where there is none."""
    path = Path(os.environ.get("KVLAB_TRACES") or "/nowhere")
    if not path.is_dir():
        pytest.skip("set KVLAB_TRACES to a folder of real traces")
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def command(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
