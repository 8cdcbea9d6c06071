"""The plugins around packages that are not here: their own tests pass, and what they register can be loaded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from framework.interfaces.backend import AttentionBackend

FOLDERS = {
    "framework-flash-attn": "framework_flash_attn.backend:FlashAttnBackend",
    "framework-flashinfer": "framework_flashinfer.backend:FlashInferBackend",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_its_own_tests_pass(folder: str, repository: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(repository / "plugins" / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout, done.stdout


@pytest.mark.parametrize(("folder", "value"), FOLDERS.items())
def test_what_it_registers_is_a_backend(
    folder: str, value: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = (repository / "plugins" / folder / "pyproject.toml").read_text()
    assert f'"{value}"' in project, project
    assert '[project.entry-points."framework.backend"]' in project, project
    module, _, name = value.partition(":")
    monkeypatch.syspath_prepend(str(repository / "plugins" / folder))
    assert issubclass(getattr(importlib.import_module(module), name), AttentionBackend)
