"""Blocks as files that outlive the process."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import xxhash

from framework.errors import ConfigError, StoreFailed
from framework.types import BlockHash
from framework_tiers.store import BlockFormat, Store

_MAGIC = b"kvblock1"
_HEADER = struct.Struct("<8sHQ16s")  # magic, length of the key, length of the data, checksum
_SUFFIX = ".kv"
_LONGEST_KEY = 96  # bytes; in hexadecimal it is a file's name
_STALE_S = 600.0  # a temporary file so old was left by a process that died
_WRITES_A_SCAN = 64


class Disk(Store):
    """One file a block below `path`, found again by the next process and shared by those that run.

    A file's folder is named by the block's format (model, dtype, layout, block size, hash scheme), its name is the key
    in hexadecimal. It is written beside and renamed, so it is whole or not there; a checksum covers format, key and
    bytes, so one that is truncated, swapped or damaged is a miss and is removed. A block that was read counts as used.
    Nothing is synced: a process that is killed loses what it was writing, a power failure what the system had not
    written yet. The checksum finds damage, not malice: share a folder only with those you trust.

    Args:
        path: the folder; made where it is missing.
        max_bytes: of all files below it, of every format: the least recently used go first. It is looked at when the
            folder is opened and every 64 writes, so each running process may be 64 blocks above it for a while.
    """

    medium = "STORAGE"

    def __init__(self, *, path: Path, max_bytes: int = 64 * 2**30) -> None:
        if max_bytes < 1:
            raise ConfigError(f"max_bytes must be at least 1, found {max_bytes}")
        self.path, self.max_bytes = Path(path).expanduser(), max_bytes

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self._size = format.block_bytes
        self._format = hashlib.sha256(repr(format).encode()).digest()
        self._folder = self.path / self._format.hex()[:32]
        self._number = self._unscanned = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            self._bound()
        except OSError as error:
            raise StoreFailed(f"{self._folder} cannot be used: {error.strerror}; choose another path") from error

    def write(self, key: BlockHash, data: memoryview) -> None:
        place = self._place(key)
        self._number += 1
        temporary = self._folder / f"{os.getpid()}-{id(self):x}-{self._number}.tmp"
        header = _HEADER.pack(_MAGIC, len(key), len(data), self._checksum(key, data))
        try:
            try:
                with temporary.open("wb", buffering=0) as file:
                    for part in (header + key, data):
                        if file.write(part) != len(part):
                            raise StoreFailed(f"{temporary} cannot be written whole: the disk is full")
                temporary.replace(place)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            self._unscanned += 1
            if self._unscanned >= _WRITES_A_SCAN:
                self._bound()
        except OSError as error:
            raise StoreFailed(f"{place} cannot be written: {error.strerror}") from error

    def read(self, key: BlockHash, into: memoryview) -> bool:
        place = self._place(key)
        try:
            with place.open("rb", buffering=0) as file:
                header = file.read(_HEADER.size + len(key))
                whole = (
                    len(header) == _HEADER.size + len(key)
                    and header[_HEADER.size :] == key
                    and file.readinto(into) == len(into) == self._size
                    and not file.read(1)
                    and header[: _HEADER.size] == _HEADER.pack(_MAGIC, len(key), self._size, self._checksum(key, into))
                )
            if whole:
                os.utime(place)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreFailed(f"{place} cannot be read: {error.strerror}") from error
        if not whole:
            self.remove(key)
        return whole

    def remove(self, key: BlockHash) -> None:
        with suppress(OSError):
            self._place(key).unlink()

    def keys(self) -> Iterator[BlockHash]:
        for place in _oldest_first(self._folder, f"*{_SUFFIX}"):
            with suppress(ValueError):
                yield BlockHash(bytes.fromhex(place[2].stem))

    def _place(self, key: BlockHash) -> Path:
        if len(key) > _LONGEST_KEY:
            raise StoreFailed(f"a key of {len(key)} bytes cannot be a file's name; at most {_LONGEST_KEY} bytes can")
        return self._folder / f"{key.hex()}{_SUFFIX}"

    def _checksum(self, key: BlockHash, data: memoryview) -> bytes:
        digest = xxhash.xxh3_128(self._format + key)
        digest.update(data)
        return bytes(digest.digest())

    def _bound(self) -> None:
        """Remove the least recently used files above `max_bytes`."""
        self._unscanned = 0
        files = _oldest_first(self.path, f"*/*{_SUFFIX}")
        above = sum(size for _, size, _ in files) - self.max_bytes
        for _, size, place in files:
            if above <= 0:
                return
            with suppress(OSError):
                place.unlink()
                above -= size

    def _remove_stale(self) -> None:
        for changed, _, place in _oldest_first(self._folder, "*.tmp"):
            if changed < time.time() - _STALE_S:
                with suppress(OSError):
                    place.unlink()


def _oldest_first(folder: Path, pattern: str) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of the files that match; one that another process removes meanwhile is left out."""
    files = []
    for place in folder.glob(pattern):
        with suppress(OSError):
            status = place.stat()
            files.append((status.st_mtime, status.st_size, place))
    return sorted(files)
