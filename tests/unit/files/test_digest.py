"""A remembered digest is the file's."""

from __future__ import annotations

import os
import time
from pathlib import Path

from framework.files.digest import sha256_of


def test_a_file_rewritten_within_one_tick_of_its_clock_is_read_again(tmp_path: Path) -> None:
    """As long and as old as before, in place, so neither its size, its time nor its inode differs."""
    path = tmp_path / "trace.jsonl"
    soon = time.time_ns() + 3_600_000_000_000  # as if it were written just now, however slow this machine
    seen = []
    for text in ("one", "two"):
        path.write_text(text)
        os.utime(path, ns=(soon, soon))
        seen.append(sha256_of(path))
    assert seen[0] != seen[1]


def test_a_file_that_rests_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("one")
    os.utime(path, ns=(0, 0))
    before = sha256_of(path)
    path.write_text("two")
    os.utime(path, ns=(0, 0))
    assert sha256_of(path) == before
