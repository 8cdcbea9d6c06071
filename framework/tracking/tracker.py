"""Error boundary around a run's trackers: one that fails is dropped with a warning, and the run goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framework.guard.boundary import OUTSIDE, origin_of, shown
from framework.interfaces.tracker import RunLabel, Tracker
from framework.results.layout import METRICS
from framework.tracking.run_directory import RunDirectory


class TrackerWarning(UserWarning):
    """A tracker failed and was left out of the rest of the run. The run directory has everything."""


class Trackers:
    """The run directory's metrics, always, and any number of trackers, each on probation.

    As a context manager it lets trackers that were never finished finish as failed, with an empty summary.

    Args:
        run: open for the whole run. Its errors are the run's errors: it is the source of truth.
        trackers: the first exception of one drops it with a TrackerWarning.
    """

    def __init__(self, run: RunDirectory, trackers: Sequence[Tracker] = ()) -> None:
        self._run = run
        self._trackers = list(trackers)

    def start(self, config: Mapping[str, Any], label: RunLabel | None = None) -> None:
        """Write `config.yaml` and start every tracker."""
        self._run.write_config(config)
        self._each("start", lambda tracker: tracker.start(config, self._run.path, label or RunLabel()))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a line `{"step": step, **metrics}` to `metrics.jsonl` and pass it to every tracker.

        Raises:
            RunDirectoryError: the line cannot be written.
        """
        self._run.log(METRICS, {"step": step, **metrics})
        if self._trackers:
            self._each("log", lambda tracker: tracker.log(step, metrics))

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        """Write `result.json`, then let every tracker finish; those that fail are reported and dropped."""
        self._run.write_result(summary)
        self._each("finish", lambda tracker: tracker.finish(summary, failed=failed))
        self._trackers.clear()

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        self._each("finish", lambda tracker: tracker.finish({}, failed=True))
        self._trackers.clear()

    def _each(self, what: str, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except OUTSIDE:
                raise
            except BaseException as fault:  # SystemExit among them: a tracker does not end a run
                self._trackers.remove(tracker)
                cls = type(tracker)
                warnings.warn(
                    f"{origin_of(cls)}: tracker {cls.__name__}.{what} failed and is left out from here; the run goes "
                    f"on and {self._run.path} has everything: {shown(fault)}",
                    TrackerWarning,
                    stacklevel=3,
                )
