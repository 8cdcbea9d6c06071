"""Whole files or none: written beside, made durable, renamed into place; and what may be written over."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from framework.errors import ConfigError
from framework.files.jsonl import json_text


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what was written there becomes `path` when the block ends well.

    Else `path` stays as it was, or absent, and nothing is left beside it. A link is written through to its file. The
    disk has it at the end, so that a crash of the machine leaves the old file or the new one. A device or a pipe has
    no name to take over, and is written to.

    Raises:
        OSError: nothing can be written here; names `path`.
    """
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        yield temporary
        _sync(temporary, os.O_RDWR)
        temporary.replace(target)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):  # some file systems cannot sync a directory; the rename itself was atomic
        _sync(target.parent, os.O_RDONLY)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, whole or not at all; see `beside`.

    Raises:
        OSError: nothing can be written here.
    """
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` as indented JSON, whole or not at all. Non-finite floats become null.

    Raises:
        InvalidArgument: `value` holds what JSON cannot; nothing was written.
        OSError: nothing can be written here.
    """
    write_text(path, json_text(value, indent=2) + "\n")


def require_new(*outputs: str | Path | None, inputs: Sequence[str | Path] = (), force: bool = False) -> None:
    """Refuse to write over a file that a user has, and to write two outputs to one; devices and pipes are written to.

    Args:
        outputs: None, and "-" for standard output, are none.
        inputs: never written over.
        force: the user said so.

    Raises:
        ConfigError: names the output.
    """
    seen: list[str] = []
    for path in (Path(output) for output in outputs if output not in (None, "-")):
        if path.exists() and not path.is_file():
            continue
        seen.append(os.path.realpath(path))
        if seen.count(seen[-1]) > 1:
            raise ConfigError(f"two outputs go to {path}; nothing was written: give each a name of its own")
        if any(seen[-1] == os.path.realpath(one) or _is_same(path, one) for one in inputs):
            raise ConfigError(f"{path} is what is read here; nothing was written: choose another name")
        if not force and path.is_file():
            raise ConfigError(
                f"{path} exists already; nothing was written: choose another name, or --force to replace it"
            )


def _is_same(path: Path, other: str | Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


@contextmanager
def no_empty_folders(path: Path) -> Iterator[None]:
    """Folders at and above `path` that were made within the block and are empty at its end are removed."""
    made = missing_folders(path)
    try:
        yield
    finally:
        remove_empty(made)


def missing_folders(path: Path) -> list[Path]:
    """`path` and the folders above it that do not exist yet, deepest first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, deepest first, up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_DISK = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EROFS", "EMFILE", "ENFILE", "ESTALE", "ENODEV", "ENOTCONN")
    if hasattr(errno, name)
)


def is_disk_failure(error: BaseException) -> bool:
    """Whether the error says that nothing can be written here any more."""
    return isinstance(error, OSError) and error.errno in _DISK
