"""Whole files or none: written beside, made durable, renamed into place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from framework.files.jsonl import to_plain


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file that becomes `path` when the block ends well; else `path` stays as it was, or absent.

    The text lies in `.NAME.PID.tmp` beside `path` until it is on the disk and takes the name.

    Raises:
        OSError: nothing can be written here.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_directory(path.parent)


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
    write_text(path, json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _sync_directory(path: Path) -> None:
    with suppress(OSError):  # some file systems cannot sync a directory; the rename itself was atomic
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
