"""The lock file of a run directory: it names host, boot, process and the process's start."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from framework.errors import RunDirectoryError, RunDirectoryInUse
from framework.files.atomic import write_json


@dataclass(frozen=True, slots=True)
class Holder:
    """One process, distinguished from any later one that gets its number.

    Attributes:
        host: machine name, for the reader of an error.
        boot: the kernel's boot id; empty where the system has none.
        pid: process number.
        started: the process's start in clock ticks since boot; empty where the system does not say.
    """

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Holder:
        """The process that calls."""
        return cls(socket.gethostname(), boot_id(), os.getpid(), _process_start(os.getpid()))

    def is_gone(self) -> bool:
        """Whether the process is surely dead. A live process of another machine cannot be asked: not gone."""
        if self.boot != boot_id():
            return self.host == socket.gethostname()
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _process_start(self.pid) != self.started


def boot_id() -> str:
    """The kernel's boot id; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def acquire(path: Path) -> bool:
    """Take the lock file `path`; returns whether a dead run's lock was taken over.

    Raises:
        RunDirectoryInUse: another live run holds it.
        RunDirectoryError: the file is no lock, or cannot be written.
    """
    with _one_at_a_time(path.parent):
        stale = False
        if path.exists():
            holder = _read(path)
            if not holder.is_gone():
                raise RunDirectoryInUse(
                    f"{path.parent} is in use by process {holder.pid} on {holder.host}; choose another directory, "
                    f"wait for that run to end, or delete {path} if that machine is gone"
                )
            stale = True
        write_json(path, asdict(Holder.this_process()))
        return stale


def holder(path: Path) -> Holder | None:
    """The live process that holds the lock file `path`; None where there is none."""
    try:
        found = _read(path)
    except (OSError, RunDirectoryError):
        return None
    return None if found.is_gone() else found


def release(path: Path) -> None:
    """Remove the lock file if this process holds it; a lock of another, or none, is left as it is."""
    with contextlib.suppress(OSError, RunDirectoryError), _one_at_a_time(path.parent):
        if _read(path) == Holder.this_process():
            path.unlink()


def _read(path: Path) -> Holder:
    try:
        fields = json.loads(path.read_text())
        return Holder(str(fields["host"]), str(fields["boot"]), int(fields["pid"]), str(fields["started"]))
    except (ValueError, KeyError, TypeError) as fault:
        raise RunDirectoryError(
            f"{path} is no lock of ours ({fault!r}); delete it if no run uses {path.parent}"
        ) from fault


def _process_start(pid: int) -> str:
    try:
        # Field 22 of proc(5)'s stat; the command in field 2 may hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@contextlib.contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Two runs that find the same stale lock must not both take it."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
