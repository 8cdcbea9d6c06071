"""SHA-256 of files, each read once while it does not change."""

from __future__ import annotations

import hashlib
import time
from functools import lru_cache
from pathlib import Path

from framework.errors import RunDirectoryError
from framework.files.jsonl import require_file

_UNSETTLED_NS = 2_000_000_000
"""A file changed so short a time ago can change again and keep its time, which file systems count in up to 2 s."""


def sha256_of(path: Path) -> str:
    """Digest of the file's bytes, hexadecimal.

    Raises:
        OSError: it cannot be read, or is a pipe or a device.
    """
    status = path.stat()
    settled = time.time_ns() - status.st_mtime_ns > _UNSETTLED_NS
    return (_sha256 if settled else _sha256.__wrapped__)(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, inode: int, size: int, changed_ns: int) -> str:
    require_file(path, RunDirectoryError)
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()
