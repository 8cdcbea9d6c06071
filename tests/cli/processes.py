"""Command lines, in this process and beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.run import call


class Command:
    """`command(*words)` -> exit status, stdout, stderr, in this process; `ok` must end with status 0, gives stdout."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = call(words)
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err

    def ok(self, *words: str) -> str:
        status, out, err = self(*words)
        assert status == 0, f"{status}: {out}\n{err}"
        return out


def start(folder: Path, *words: str, module: str = "framework.run") -> subprocess.Popen[str]:
    """`python -m MODULE WORDS` in `folder`, in a session of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "0", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Until it holds, for two minutes at most, and while the process runs."""
    deadline = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None, process and process.communicate()
        assert time.monotonic() < deadline, "it did not come to be in two minutes"
        time.sleep(0.01)


def written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
