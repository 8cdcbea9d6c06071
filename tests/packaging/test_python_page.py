"""The page on the Python API shows what runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_examples_of_the_page_run_in_order(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (repository / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.S):
        exec(compile(block, "docs/python.md", "exec"), names)
    assert "cancelled" in capsys.readouterr().out
