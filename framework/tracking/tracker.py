"""The tracker of a run: one that fails is dropped with a warning, and the run goes on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from framework.guard.boundary import OUTSIDE, origin_of, text_of
from framework.interfaces.tracker import RunLabel, Tracker
from framework.results.layout import METRICS
from framework.tracking.run_directory import RunDirectory


class TrackerWarning(UserWarning):
    """A tracker failed and was left out of the rest of the run. The run directory has everything."""


class TrackedRun:
    """The run directory's metrics, always, and a tracker on probation.

    Args:
        run: open for the whole run. Its errors are the run's errors: it is the source of truth.
        tracker: its first exception drops it with a TrackerWarning.
    """

    def __init__(self, run: RunDirectory, tracker: Tracker) -> None:
        self._run = run
        self._tracker: Tracker | None = tracker

    def start(self, config: Mapping[str, Any], label: RunLabel | None = None) -> None:
        """Write `config.yaml` and start the tracker."""
        self._run.write_config(config)
        self._call("start", config, self._run.path, label or RunLabel())

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a line `{"step": step, **metrics}` to `metrics.jsonl` and pass it to the tracker.

        Raises:
            RunDirectoryError: the line cannot be written.
        """
        self._run.log(METRICS, {"step": step, **metrics})
        self._call("log", step, metrics)

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        """Write `result.json`, then let the tracker finish."""
        self._run.write_result(summary)
        self._call("finish", summary, failed=failed)
        self._tracker = None

    def _call(self, what: str, *given: Any, **options: Any) -> None:
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, what)(*given, **options)
        except OUTSIDE:
            raise
        except BaseException as fault:  # SystemExit among them: a tracker does not end a run
            cls, self._tracker = type(self._tracker), None
            warnings.warn(
                f"{origin_of(cls)}: tracker {cls.__name__}.{what} failed and is left out from here; the run goes "
                f"on and {self._run.path} has everything: {text_of(fault)}",
                TrackerWarning,
                stacklevel=3,
            )
