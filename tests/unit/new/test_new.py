"""A new package is written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from framework import registry
from framework.errors import ConfigError
from framework.new import create


@pytest.mark.parametrize("kind", registry.kinds())
def test_every_kind_can_be_begun_and_every_python_file_compiles(kind: str, tmp_path: Path) -> None:
    place = create("my-first-idea", kind, tmp_path)
    written = [path for path in place.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"pyproject.toml", "README.md", f"{kind}.py", "test_my_first_idea.py"}
    assert f'[project.entry-points."framework.{kind}"]' in (place / "pyproject.toml").read_text()
    for path in written:
        text = path.read_text()
        assert "${" not in text, path
        if path.suffix == ".py":
            compile(text, str(path), "exec")


def test_a_full_disk_leaves_no_half_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], Path.write_text

    def full(path: Path, text: str, **how: Any) -> int:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written.append(path)
        return write(path, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match=r"cannot write .*No space left"):
        create("my-first-idea", "eviction", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
