"""The directory of one run: who holds it, what may be cleared, and files that a crash at any moment leaves readable."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from framework.errors import ConfigError, FrameworkError, RunDirectoryError
from framework.files.atomic import missing_folders, remove_empty, write_json, write_text
from framework.files.jsonl import dump_line, to_plain
from framework.files.secrets import masked
from framework.results.layout import (
    CONFIG,
    EVENTS,
    FAILURE,
    JOB,
    KERNEL,
    KV_EVENTS,
    LOCK,
    MARK,
    METRICS,
    PROVENANCE,
    RECORDING,
    REQUESTS,
    RESULT,
    ROOFLINE,
    ROOFLINE_SVG,
)
from framework.results.reading import read_json
from framework.tracking.lock import Lock
from framework.tracking.provenance import DISTRIBUTION

_FLUSH_BYTES = 1 << 16
_FLUSH_AFTER_S = 1.0
_OF_A_RUN = (
    RESULT, FAILURE, CONFIG, PROVENANCE, METRICS, EVENTS, REQUESTS, KERNEL, ROOFLINE, ROOFLINE_SVG, RECORDING,
    KV_EVENTS,
)  # fmt: skip
"""What a run writes, and what the next one in the same directory removes; the result first."""
_NOT_FOREIGN = re.compile(rf"{LOCK}|{re.escape(JOB)}|{re.escape(FAILURE)}|\.hydra|.*\.log|\..*\.tmp")
"""What may lie in a directory before a run's mark does: a lock, a sweep's job, Hydra's files, cut-off writes."""


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
        data, self._last_flush_s = b"".join(self._pending), time.monotonic()
        if not data:
            return
        if self._handle is None:
            raise RunDirectoryError(f"{self.path}: written to after it was closed")
        try:
            with _as_run_directory_error(self.path):
                self._write_whole_lines(data)
        except FrameworkError:
            self._drop_pending()
            raise
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0

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
        except BaseException as error:
            # After an interrupt the lines are still pending, and the next flush writes all of them.
            whole = data.rfind(b"\n", 0, done) + 1 if isinstance(error, OSError) else 0
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

    Construction takes the lock and changes nothing else. What an earlier run left is removed by `begin`, or by the
    first thing written: a run that cannot start leaves an earlier result as it was.

    Args:
        path: created with its parents. It must be empty, or have been a run's directory before.
        overwrite: also replace a finished run, one that has a `result.json`.
        on_begin: called with the directory when it becomes this run's, before anything is removed; if it raises,
            nothing is.

    Attributes:
        path: the directory, absolute.
        begun: whether the directory is this run's.

    Raises:
        ConfigError: no folder of its own (empty, the working directory or one above it), or one with other files.
        RunDirectoryInUse: a live run holds it.
        RunDirectoryError: cannot be created or written, or holds a finished run and `overwrite` is False.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        on_begin: Callable[[Path], object] = lambda path: None,
    ) -> None:
        self.path, self._on_begin = _own_folder(path), on_begin
        self.begun = False
        self._writers: dict[str, JsonLinesWriter] = {}
        self._made = missing_folders(self.path)
        with _as_run_directory_error(self.path):
            refuse_foreign(self.path)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.path / LOCK)
            except BaseException:
                remove_empty(self._made)
                raise
        if self.holds_result and not overwrite:
            self._lock.release()
            raise RunDirectoryError(f"{self.path} holds a finished run; choose another directory or allow overwriting")

    @property
    def holds_result(self) -> bool:
        """Whether there is a `result.json`, an earlier run's until `begin`."""
        return (self.path / RESULT).exists()

    def begin(self) -> None:
        """Make the directory this run's: mark it, and remove what an earlier run left. Idempotent.

        Raises:
            RunDirectoryError: nothing can be written here; nothing was removed.
        """
        if self.begun:
            return
        with _as_run_directory_error(self.path):
            write_json(self.path / MARK, {"format": "kvcache-framework run directory", "version": 1})
            self._on_begin(self.path)
            for name in _OF_A_RUN:
                (self.path / name).unlink(missing_ok=True)
        self.begun = True

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved configuration, a plain mapping, as YAML in its own order; secrets are masked."""
        import yaml

        self.begin()
        with _as_run_directory_error(self.path / CONFIG):
            write_text(
                self.path / CONFIG, yaml.safe_dump(masked(to_plain(config)), sort_keys=False, allow_unicode=True)
            )

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
            self.begin()
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
        self._lock.release()
        if not self.begun:
            remove_empty(self._made)
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
            if error is None:  # the first fault is the one to report
                raise

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.begin()
        with _as_run_directory_error(self.path / name):
            write_json(self.path / name, value)


def _own_folder(path: str | Path) -> Path:
    """The absolute path, if it can be a folder of a run's own."""
    own = Path(path).absolute()
    if not str(path).strip() or own.resolve() in (here := Path.cwd().resolve(), *here.parents):
        raise ConfigError(
            f"run.dir={str(path)!r} is no folder of its own: the working directory lies in it; name one, such as "
            f"run.dir=runs/mine"
        )
    return own


def refuse_foreign(path: Path) -> None:
    """Raise where `path` is a file, or a folder with files that no run wrote."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"run.dir={str(path)!r} is no folder; name a new one, such as run.dir=runs/mine")
    package = (read_json(path / PROVENANCE) or {}).get("package")
    if (path / MARK).exists() or (isinstance(package, dict) and package.get("name") == DISTRIBUTION):
        return
    foreign = sorted(entry.name for entry in path.iterdir() if not _NOT_FOREIGN.fullmatch(entry.name))
    if foreign:
        shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise ConfigError(
            f"{path} holds files that are no run's ({shown}); nothing was changed. Choose another run.dir, or move them"
        )


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
