"""The command line from a working directory that is not the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capsys)
