"""Trackers: where live numbers of a run go besides its directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RunLabel", "Tracker"]


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
    """Follows one run, chosen by `tracker=NAME`; what it shows besides live metrics it reads from the run's directory.

    Constructor keywords are the options of the command line. A constructor checks its options, with ConfigError, and
    does nothing else: it runs before the workload is read. What a method raises is reported once, and the run goes on
    without this tracker. The mappings it is given belong to the run and are not to be changed.
    """

    @abstractmethod
    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        """The run begins.

        Args:
            config: the whole configuration, plain: what `config.yaml` holds.
            folder: the run's directory. A tracker may write files of its own here, none that the run writes.
            label: how to call the run.
        """

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers of one step, as a line of `metrics.jsonl`; steps never decrease.

        Called often, between two steps of the engine: must not wait for anything. A value may be None or NaN.
        """

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        """The run ended and its directory is complete and flushed. Called once, also for a run that never started.

        Args:
            summary: what `result.json` holds; empty for a run that left none.
            failed: whether the run counts as a failure: it raised, was interrupted, or a request of it failed.
        """

    def publish(self, files: Sequence[Path], folder: Path) -> None:
        """A report of the runs in `folder`, whose tracker this would be, has been written; it follows no run.

        Args:
            files: of the report, the page first.
        """
        return
