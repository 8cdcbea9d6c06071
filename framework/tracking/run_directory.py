"""The directory of one run: who holds it, what may be cleared, and files that a crash at any moment leaves readable."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, FrameworkError, RunDirectoryError
from framework.files.atomic import missing_folders, remove_empty, write_json, write_text
from framework.files.jsonl import dump_line, to_plain
from framework.files.lock import Lock
from framework.files.secrets import masked
from framework.results.layout import CONFIG, FAILURE, JOB, LOCK, MARK, PROVENANCE, RESULT, files_of_a_run

_FLUSH_BYTES = 1 << 16
_FLUSH_AFTER_S = 1.0
_NOT_FOREIGN = re.compile(rf"{LOCK}|{re.escape(JOB)}|{re.escape(FAILURE)}|\.hydra|.*\.log|\..*\.tmp")
"""What may lie in a directory before a run's mark does: a lock, a sweep's job, Hydra's files, cut-off writes."""


class JsonLinesWriter:
    """Writes records to one file, a line each.

    Lines are held back up to a second or 64 KiB, so that a step costs no system call. Once a write has failed (disk
    full, quota) the file is closed: it keeps what fitted, of which a reader drops a cut-off last line.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._last_flush_s = path, time.monotonic()
        with _as_run_directory_error(path):
            self._file = path.open("wb", buffering=_FLUSH_BYTES)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one record. NaN and infinities become null.

        Raises:
            InvalidArgument: the record holds what JSON cannot; nothing was added.
            RunDirectoryError: the file cannot be written, or was closed; earlier lines are kept.
        """
        line, now = dump_line(record), time.monotonic()
        if self._file.closed:
            raise RunDirectoryError(f"{self.path}: written to after it was closed")
        with self._closed_by_failure():
            self._file.write(line)
        if now - self._last_flush_s >= _FLUSH_AFTER_S:
            self._last_flush_s = now
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the operating system.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        if not self._file.closed:
            with self._closed_by_failure():
                self._file.flush()

    def close(self) -> None:
        """Flush and close. Closing twice is harmless."""
        with _as_run_directory_error(self.path):
            self._file.close()

    @contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        with _as_run_directory_error(self.path):
            try:
                yield
            except OSError:
                with suppress(OSError):  # the rest does not fit either
                    self._file.close()
                raise


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
            for name in files_of_a_run():
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
        """Write what made the run; see `framework.tracking.provenance.collect_provenance`."""
        self._write_json(PROVENANCE, provenance)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Flush all logs, then write the summary atomically and durably (temporary file, fsync, rename)."""
        self.flush()
        self._write_json(RESULT, result)

    def log(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a line to one of the run's JSON-lines files, opened at its first use and closed with the run."""
        if name not in self._writers:
            self.begin()
            self._writers[name] = JsonLinesWriter(self.path / name)
        self._writers[name].write(record)

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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
    folder = Path(path).absolute()
    if not str(path).strip() or folder.resolve() in (here := Path.cwd().resolve(), *here.parents):
        raise ConfigError(
            f"run.dir={str(path)!r} is no folder of its own: the working directory lies in it; name one, such as "
            f"run.dir=runs/mine"
        )
    return folder


def refuse_foreign(path: Path) -> None:
    """Raise where `path` is a file, or a folder with files that no run wrote."""
    if not path.exists() or (path / MARK).exists():
        return
    if not path.is_dir():
        raise ConfigError(f"run.dir={str(path)!r} is no folder; name a new one, such as run.dir=runs/mine")
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
