"""SHA-256 of files, each read once while it does not change."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from framework.errors import RunDirectoryError
from framework.files.lines import require_file


def sha256_of(path: Path) -> str:
    """Of the file's bytes, hexadecimal.

    Raises:
        OSError: it cannot be read, or is a pipe or a device.
    """
    found = path.stat()
    return _sha256(path, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, inode: int, size: int, changed_ns: int) -> str:
    require_file(path, RunDirectoryError)
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()
