"""A new package is written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework_testing.new import create


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
