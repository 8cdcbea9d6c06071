"""A reader that has read enough is no failure of any command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "framework.run": ("--help",),
    "framework.plugins": ("--kind", "hash", "--json"),
    "framework.report": ("lost",),  # printed by rich
}


@pytest.mark.parametrize("module", COMMANDS)
def test_a_closed_pipe_ends_a_command_quietly(module: str, tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "failure.json").write_text('{"status": "failed", "reason": "lost", "overrides": []}')
    words = [sys.executable, "-m", module, *COMMANDS[module]]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.close()
        assert run.stderr is not None
        err = run.stderr.read()
    assert (err, run.returncode) == ("", 0), (err, run.returncode)
