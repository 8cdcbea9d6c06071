"""What a run leaves behind: one directory, written so that a crash at any moment loses nothing already told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from framework.errors import FrameworkError, RunDirectoryError
from framework.files.atomic import write_json, write_text
from framework.files.jsonl import dump_line, to_plain
from framework.results.layout import CONFIG, EVENTS, KERNEL, METRICS, PROVENANCE, REQUESTS, RESULT, ROOFLINE
from framework.tracking import lock

_FLUSH_BYTES = 1 << 16
_FLUSH_AFTER_S = 1.0


class JsonLinesWriter:
    """Appends records to one file, whole lines at a time.

    Lines are held back up to a second or 64 KiB, so that a step costs no system call. A write that fails midway
    (disk full, quota) is undone to the last whole line, and the file keeps everything before it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written_bytes = 0
        self._last_flush_s = time.monotonic()
        with _as_run_directory_error(path):
            self._handle: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one record. NaN and infinities become null.

        Raises:
            InvalidArgument: the record holds what JSON cannot; nothing was added.
            RunDirectoryError: the file cannot be written; earlier lines are kept.
        """
        line = dump_line(record)
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _FLUSH_BYTES or time.monotonic() - self._last_flush_s >= _FLUSH_AFTER_S:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the operating system.

        Raises:
            RunDirectoryError: the file cannot be written, or was closed; lines that did not fit are dropped.
        """
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._last_flush_s = time.monotonic()
        if not data:
            return
        if self._handle is None:
            raise RunDirectoryError(f"{self.path}: written to after it was closed")
        with _as_run_directory_error(self.path):
            self._write_whole_lines(data)

    def close(self) -> None:
        """Flush and close. Closing twice is harmless."""
        if self._handle is None:
            return
        try:
            self.flush()
        finally:
            handle, self._handle = self._handle, None
            os.close(handle)

    def _write_whole_lines(self, data: bytes) -> None:
        assert self._handle is not None
        view, done = memoryview(data), 0
        try:
            while done < len(data):
                done += os.write(self._handle, view[done:])
        except OSError:
            whole = data.rfind(b"\n", 0, done) + 1
            with suppress(OSError):  # a device or a pipe cannot be cut; the reader drops a partial last line
                os.ftruncate(self._handle, self._written_bytes + whole)
                os.lseek(self._handle, self._written_bytes + whole, os.SEEK_SET)
            self._written_bytes += whole
            raise
        self._written_bytes += len(data)


class RunDirectory:
    """One run's directory, held by one process from construction to `close`.

    Files: `config.yaml` resolved configuration; `provenance.json` versions, machine, seeds; `metrics.jsonl` one object
    a step or flush; `events.jsonl` scheduling and eviction log, if asked for; `requests.jsonl` one object a request;
    `result.json` the summary, written whole or not at all: where it exists, the run got that far.

    Args:
        path: created with its parents. What an unfinished earlier run left there is replaced.
        overwrite: also replace a finished run, one that has a `result.json`.

    Attributes:
        path: the directory, absolute.
        took_over: whether a dead run's lock was found and taken over.

    Raises:
        RunDirectoryError: cannot be created or written, is held by a live run, or holds a finished one.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path).absolute()
        self._writers: dict[str, JsonLinesWriter] = {}
        with _as_run_directory_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.took_over = lock.acquire(self._lock)
        try:
            self._clear(overwrite)
        except BaseException:
            lock.release(self._lock)
            raise

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved configuration, a plain mapping, as YAML in its own order."""
        import yaml

        with _as_run_directory_error(self.path / CONFIG):
            write_text(self.path / CONFIG, yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True))

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Write what made the run; see `framework.tracking.provenance.collect`."""
        self._write_json(PROVENANCE, provenance)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Flush all logs, then write the summary atomically and durably (temporary file, fsync, rename)."""
        self.flush()
        self._write_json(RESULT, result)

    def writer(self, name: str) -> JsonLinesWriter:
        """The writer of one of the run's JSON-lines files, opened at its first use and closed with the run."""
        if name not in self._writers:
            self._writers[name] = JsonLinesWriter(self.path / name)
        return self._writers[name]

    def log_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a line to `metrics.jsonl`."""
        self.writer(METRICS).write(record)

    def log_event(self, record: Mapping[str, Any]) -> None:
        """Add a line to `events.jsonl`."""
        self.writer(EVENTS).write(record)

    def log_request(self, record: Mapping[str, Any]) -> None:
        """Add a line to `requests.jsonl`."""
        self.writer(REQUESTS).write(record)

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Flush, close and let go of the lock, also when a flush fails. Closing twice is harmless."""
        writers, self._writers = self._writers, {}
        fault: RunDirectoryError | None = None
        for writer in writers.values():
            try:
                writer.close()
            except RunDirectoryError as error:
                fault = fault or error
        lock.release(self._lock)
        if fault is not None:
            raise fault

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RunDirectoryError:
            if error is None:  # the first fault is the one to tell
                raise

    @property
    def _lock(self) -> Path:
        return self.path / "lock"

    def _clear(self, overwrite: bool) -> None:
        if (self.path / RESULT).exists() and not overwrite:
            raise RunDirectoryError(f"{self.path} holds a finished run; choose another directory or allow overwriting")
        with _as_run_directory_error(self.path):
            for name in (RESULT, CONFIG, PROVENANCE, METRICS, EVENTS, REQUESTS, KERNEL, ROOFLINE):
                (self.path / name).unlink(missing_ok=True)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        with _as_run_directory_error(self.path / name):
            write_json(self.path / name, value)


@contextmanager
def _as_run_directory_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FrameworkError:
        raise
    except OSError as fault:
        raise RunDirectoryError(
            fault.errno or 0, f"{path} cannot be written: {fault.strerror}; results so far are kept"
        ) from fault
