"""Faults of a disk, as opposed to paths that were given wrongly."""

from __future__ import annotations

import errno

_DISK = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EROFS", "EMFILE", "ENFILE", "ESTALE", "ENODEV", "ENOTCONN")
    if hasattr(errno, name)
)


def is_disk_failure(error: BaseException) -> bool:
    """Whether the error says that nothing can be written here any more."""
    return isinstance(error, OSError) and error.errno in _DISK
