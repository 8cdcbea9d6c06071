"""The lock file of a directory: one process holds it, until it lets go or ends."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from framework.errors import RunDirectoryInUse


class Lock:
    """The lock file `path`, taken. The kernel frees it when this process ends, however it does.

    Raises:
        RunDirectoryInUse: another run holds it.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = self._taken()
        while not self._is_there():  # whoever held it has removed it since it was opened
            os.close(self._handle)
            self._handle = self._taken()
        try:
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError:
            self.release()
            raise

    def _taken(self) -> int:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(handle, 500).decode(errors="replace")
            os.close(handle)
            raise RunDirectoryInUse(
                f"{self._path.parent} is in use by {holder}; choose another directory, or wait for that run to end"
            ) from error
        return handle

    def _is_there(self) -> bool:
        assert self._handle is not None
        return self._path.exists() and os.path.samestat(os.fstat(self._handle), self._path.stat())

    def release(self) -> None:
        """Let go of the lock and remove its file. Idempotent."""
        if self._handle is None:
            return
        with suppress(OSError):
            if self._is_there():
                self._path.unlink()
        os.close(self._handle)
        self._handle = None
