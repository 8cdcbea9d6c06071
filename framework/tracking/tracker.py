"""Trackers: where live numbers go besides the run directory. A tracker that fails is dropped; the run goes on."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.tracking.run_directory import RunDirectory


class TrackerWarning(UserWarning):
    """A tracker failed and was left out of the rest of the run. The run directory has everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """How a run is called among others.

    Attributes:
        name: of this run, such as its overrides.
        group: what it belongs to, such as its sweep; empty for none.
        job_type: its combination of components, such as `prefix_cow-lru-sha256-torch`.
        tags: free words to filter by.
    """

    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: tuple[str, ...] = ()


class Tracker(ABC):
    """Follows one run. What it shows besides live metrics it reads from the run directory when the run finishes.

    Any exception is contained by `Trackers`: it is reported once, and the run goes on without this tracker.
    """

    @abstractmethod
    def start(self, config: Mapping[str, Any], run: RunDirectory, label: RunLabel) -> None:
        """The run begins. `config` is the resolved configuration, plain and not to be changed."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers of one step; steps never decrease. Called often: must not wait for anything."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        """The run ended and its directory is complete and flushed. Called once, also after a failure."""


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
        self._each("start", lambda tracker: tracker.start(config, self._run, label or RunLabel()))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a line `{"step": step, **metrics}` to `metrics.jsonl` and pass it to every tracker.

        Raises:
            RunDirectoryError: the line cannot be written.
        """
        self._run.log_metrics({"step": step, **metrics})
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
            except Exception as fault:
                self._trackers.remove(tracker)
                warnings.warn(
                    f"{type(tracker).__name__}.{what} failed and is left out from here; the run goes on and "
                    f"{self._run.path} has everything: {type(fault).__name__}: {fault}",
                    TrackerWarning,
                    stacklevel=3,
                )
