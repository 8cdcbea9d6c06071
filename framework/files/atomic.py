"""Whole files or none: written beside, made durable, renamed into place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from framework.files.jsonl import json_text


@contextmanager
def beside(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A name beside `path` to write to; what was written there becomes `path` when the block ends well.

    Else `path` stays as it was, or absent, and nothing is left beside it. A link is written through to its file.

    Args:
        durable: wait until the disk has it, so that a crash of the machine leaves the old file or the new one.

    Raises:
        OSError: nothing can be written here.
    """
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if durable:
            _sync(temporary, os.O_RDWR)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if not durable:
        return
    with suppress(OSError):  # some file systems cannot sync a directory; the rename itself was atomic
        _sync(target.parent, os.O_RDONLY)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file that becomes `path` when the block ends well; see `beside`.

    Raises:
        OSError: nothing can be written here.
    """
    with beside(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, whole or not at all; see `replacing`."""
    with replacing(path) as file:
        file.write(text)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` as indented JSON, whole or not at all. Non-finite floats become null.

    Raises:
        InvalidArgument: `value` holds what JSON cannot; nothing was written.
        OSError: nothing can be written here.
    """
    write_text(path, json_text(value, indent=2) + "\n")


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
