"""Jobs that a launcher runs in other processes, as the files in their folders tell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from framework.results.layout import FAILURE, JOB, RESULT
from framework.results.reading import read_json, what_went_wrong
from framework.sweep.job import Outcome, State

_Stamp = tuple[int, int] | None


class Watch:
    """`with Watch(folders, report):` around a launcher's call: `report` is called once a job, soon after its end.

    A launcher returns when all jobs have ended, and its workers may be on other machines: what both sides see is the
    sweep's folder. `report` is called in a thread of its own; `finish` reports what the files did not show.

    Args:
        folders: of the jobs that are launched; what lies in them already does not count.
        every_s: seconds between two looks.
    """

    def __init__(self, folders: Iterable[Path], report: Callable[[Outcome], None], *, every_s: float = 0.5) -> None:
        self._report, self._every_s = report, every_s
        self._before = {folder: (_stamp(folder / RESULT), _stamp(folder / FAILURE)) for folder in folders}
        self._open = dict.fromkeys(self._before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="sweep-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def finish(self, outcome: Outcome) -> None:
        """Report a job that the launcher returned, unless its files did. After the block."""
        folder = None if outcome.directory is None else Path(outcome.directory)
        if folder is None or folder not in self._before or folder in self._open:
            self._open.pop(folder, None)  # type: ignore[arg-type]
            self._report(outcome)

    def _look_on(self) -> None:
        while not self._ended.wait(self._every_s):
            for folder in list(self._open):
                if (outcome := self._outcome(folder)) is not None:
                    del self._open[folder]
                    self._report(outcome)

    def _outcome(self, folder: Path) -> Outcome | None:
        """How the job in `folder` ended; None while nothing says so. A bad result waits for the failure beside it."""
        old_result, old_failure = self._before[folder]
        failed_at, ended_at = _stamp(folder / FAILURE), _stamp(folder / RESULT)
        state: State | None = None
        if failed_at not in (None, old_failure):
            found = (read_json(folder / FAILURE) or {}).get("status")
            state, ended_at = "unavailable" if found == "unavailable" else "failed", failed_at
        elif ended_at not in (None, old_result) and (result := read_json(folder / RESULT)) is not None:
            state = None if what_went_wrong(result) else "ok"
        if state is None or ended_at is None:
            return None
        began_at = _stamp(folder / JOB)
        took_s = None if began_at is None or began_at > ended_at else (ended_at[0] - began_at[0]) / 1e9
        return Outcome(directory=str(folder), state=state, took_s=took_s)


def _stamp(path: Path) -> _Stamp:
    """When a file was written, ns, and which file it is; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
