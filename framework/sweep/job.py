"""The folder of a sweep's job: its name, whether the job is done, what a failure leaves, and a watch for its end.

A job's folder holds `job.json` (its overrides and its identity), the files of its run directory, and `failure.json`
when it ended badly. `result.json` is removed before `job.json` is replaced, so that a result always belongs to the
identity beside it, whenever the process is killed; both happen only once the job has read what it needs.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from framework.errors import ConfigError, FrameworkError, RunDirectoryError
from framework.files.atomic import write_json
from framework.files.secrets import masked
from framework.results.layout import FAILURE, JOB, JOURNAL, REPORT, RESULT, SWEEP
from framework.results.reading import read_json, what_went_wrong
from framework.sweep.identity import NOT_IN_HASH

State = Literal["ok", "failed", "unavailable", "skipped", "elsewhere"]
_Stamp = tuple[int, int] | None

_LONGEST, _LONGEST_WORD, _LONGEST_NAME = 80, 48, 220  # of 255 that a file system takes
_HASH_CHARACTERS = 8
_NOT_A_JOB = re.compile(r"^[+~]*(hydra|tracker|run\.(" + "|".join(sorted(NOT_IN_HASH)) + r"))\b")
_FIRST = ("mode", "workload.path", "allocator", "eviction", "hash", "backend", "model", "cache", "seed")


class JobDone(FrameworkError):
    """Another process has done this very job since it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one job left.

    Attributes:
        directory: of the run; None if it never got that far.
        sweep: the folder of its sweep; None for a single run.
        status: exit status of this job alone.
        state: `skipped` is a job that was done before, `elsewhere` one that another process is running.
        reason: why it failed, one sentence.
        disk: whether it failed because nothing can be written.
        mode: what the run did; empty where its configuration could not be read.
        report: the command that writes a report of its sweep, at the end; None for no report.
        took_s: wall time, seconds; None where it did not run.
        error: what ended a single run, for its traceback.
    """

    directory: str | None
    sweep: str | None = None
    status: int = 0
    state: State = "ok"
    reason: str = ""
    disk: bool = False
    mode: str = ""
    report: str | None = None
    took_s: float | None = None
    error: BaseException | None = None


ENDED: list[Outcome] = []
"""What the jobs of this process's command left, in order: `hydra.main` hands on nothing that its task returns."""


def folder_name(overrides: Sequence[str], varied: Collection[str] = ()) -> str:
    """The folder of an override set: readable, and the same tail whatever the order or the sweep.

    Overrides of `hydra.`, `tracker` and of where a run writes do not count. The tail is a hash of all the others; what
    looks like a secret is masked in the readable part.

    Args:
        varied: keys in which the jobs of a sweep differ: they come first and are never left out. The others follow
            while the name has at most 80 characters.
    """
    words = sorted({word.lstrip("+") for word in overrides if not _NOT_A_JOB.match(word)}, key=_rank)
    first = [word for word in words if key_of(word) in varied]
    kept = [_short(masked(word))[:_LONGEST_WORD] for word in first]
    for word in words:
        if word not in first:
            kept.append(_short(masked(word)))
            if len(",".join(kept)) > _LONGEST - _HASH_CHARACTERS - 1:
                kept.pop()
                break
    return f"{','.join(kept)[:_LONGEST_NAME] or 'default'}-{folder_tail(overrides)}"


def folder_tail(overrides: Sequence[str]) -> str:
    """The tail of an override set's folder."""
    words = sorted({word.lstrip("+") for word in overrides if not _NOT_A_JOB.match(word)})
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:_HASH_CHARACTERS]


def key_of(override: str) -> str:
    """`cache.num_blocks` of `++cache.num_blocks=64`."""
    return override.lstrip("+~").partition("=")[0]


def is_done(directory: Path, wanted: str) -> bool:
    """Whether `directory` holds the good result of the job of this identity; whatever is unreadable is none."""
    result, job = read_json(directory / RESULT), read_json(directory / JOB)
    return bool(result and job and job.get("identity") == wanted and not what_went_wrong(result))


def begin(directory: Path, overrides: Sequence[str], wanted: str) -> None:
    """Mark `directory`, which this process holds, as this job's, with no result yet.

    Raises:
        JobDone: the good result of this job is there; nothing is changed.
        RunDirectoryError: it cannot be written.
    """
    if is_done(directory, wanted):
        raise JobDone(f"{directory} holds the result of this job already")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in (RESULT, FAILURE):
            (directory / name).unlink(missing_ok=True)
        write_json(directory / JOB, {"overrides": masked(list(overrides)), "identity": wanted})
    except OSError as fault:
        raise RunDirectoryError(fault.errno or 0, f"{directory} cannot be written: {fault.strerror}") from fault


def fail(directory: Path, state: State, reason: str, overrides: Sequence[str] = ()) -> None:
    """Leave `failure.json`, if anything can be written at all; the reason is on standard error as well."""
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / FAILURE, {"status": state, "reason": reason, "overrides": masked(list(overrides))})


def require_sweep_folder(folder: Path) -> None:
    """Refuse a folder of files that no sweep, search or report wrote.

    Raises:
        ConfigError: names them; or it is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name another for the sweep")
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    ours = {SWEEP, JOURNAL, REPORT} & set(names) or any((folder / name / JOB).exists() for name in names)
    foreign = [name for name in names if not name.startswith((".", "lock"))]
    if foreign and not ours:
        raise ConfigError(
            f"{folder} holds files that are no sweep's ({', '.join(foreign[:3])}{', ...' if foreign[3:] else ''}); "
            "nothing was changed: name another folder for the sweep, or move them"
        )


def _rank(word: str) -> tuple[int, str]:
    key = word.partition("=")[0]
    head = key if key in _FIRST else key.partition(".")[0]
    return (_FIRST.index(head) if head in _FIRST else len(_FIRST), word)


def _short(word: str) -> str:
    """`cache.num_blocks=64` as `num_blocks=64`, a path by its last part, and nothing a file system or shell minds."""
    key, _, value = word.partition("=")
    key = key.removeprefix("cache.")
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", f"{key}={value.strip(chr(39)).rstrip('/').rpartition('/')[2]}")


@contextmanager
def watched(
    folders: Iterable[Path], report: Callable[[Outcome], None], *, every_s: float = 0.5
) -> Iterator[Callable[[Outcome], None]]:
    """Around a launcher's call: `report` is called once a job, soon after its end, in a thread of its own.

    A launcher returns when all jobs have ended, and its workers may be on other machines: what both sides see is the
    sweep's folder. Given is a function that takes what the launcher returned, and reports what the files did not show.

    Args:
        folders: of the jobs that are launched; what lies in them already does not count.
        every_s: seconds between two looks.
    """
    before = {folder: (_stamp(folder / RESULT), _stamp(folder / FAILURE)) for folder in folders}
    running, ended, one_at_a_time = list(before), threading.Event(), threading.Lock()

    def tell(folder: Path, outcome: Outcome) -> None:
        with one_at_a_time:  # the thread that looks on and whoever launched may both have seen it
            if folder in running:
                running.remove(folder)
                report(outcome)

    def look_on() -> None:
        while not ended.wait(every_s):
            for folder in list(running):
                if (outcome := _end_of(folder, *before[folder])) is not None:
                    tell(folder, outcome)

    def finish(outcome: Outcome) -> None:
        folder = Path(outcome.directory or "")
        if folder in before:
            tell(folder, outcome)
        else:
            report(outcome)

    thread = threading.Thread(target=look_on, name="sweep-watch", daemon=True)
    thread.start()
    try:
        yield finish
    finally:
        ended.set()
        thread.join()


def _end_of(folder: Path, old_result: _Stamp, old_failure: _Stamp) -> Outcome | None:
    """How the job in `folder` ended; None while nothing says so. A bad result waits for the failure beside it."""
    failed_at, ended_at = _stamp(folder / FAILURE), _stamp(folder / RESULT)
    state: State = "ok"
    if failed_at not in (None, old_failure):
        status = (read_json(folder / FAILURE) or {}).get("status")
        state, ended_at = "unavailable" if status == "unavailable" else "failed", failed_at
    elif ended_at == old_result or (result := read_json(folder / RESULT)) is None or what_went_wrong(result):
        return None
    began_at = _stamp(folder / JOB)
    took_s = None if began_at is None or ended_at is None else (ended_at[0] - began_at[0]) / 1e9
    return Outcome(directory=str(folder), state=state, took_s=took_s)


def _stamp(path: Path) -> _Stamp:
    """When a file was written, ns, and which file it is; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino
