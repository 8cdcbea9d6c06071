"""Files that several runs of one process read once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_KEPT: list[dict[Hashable, list[Any]]] = []


@contextmanager
def read_once() -> Iterator[None]:
    """Within it this process reads each file once that is read through `kept`, and keeps what it read in memory."""
    _KEPT.append({})
    try:
        yield
    finally:
        _KEPT.pop()


def kept(path: Path, read_as: Hashable, read: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What `read` yields of the file; within `read_once`, what it yielded when the file was first read as `read_as`."""
    if not _KEPT:
        return read()
    stat = path.stat()
    key = path.resolve(), stat.st_mtime_ns, stat.st_size, read_as
    if key not in _KEPT[-1]:
        _KEPT[-1][key] = list(read())
    return iter(_KEPT[-1][key])
