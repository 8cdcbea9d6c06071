"""Modes: what a run does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from framework.config.config import Config
    from framework.results.metric import Metric

__all__ = ["Mode", "OnBegin"]

OnBegin = Callable[[Path], object]
"""Called once with the run directory when it becomes the run's."""


class Mode(ABC):
    """What a run does, chosen by `mode=NAME`. Constructor keywords are its options, `mode.OPTION=VALUE`.

    The module of a mode is imported whenever a configuration is read: it imports what it needs as late as it can.

    Attributes:
        executors: what `executor=` may be besides null.
        workload: what is run where no workload is chosen; empty: the default of conf/config.yaml.
        metrics: keys of `result.json` that it writes besides those of the framework.
        files: names in a run directory that it writes besides; a later run there removes them.
        repeats: kinds of plugin; that one of them takes the seed is all that makes two runs over one trace differ.
            Empty: time, a model or something else does too.
    """

    executors: ClassVar[tuple[str, ...]] = ()
    workload: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    repeats: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Config) -> None:
        """Refuse what cannot be in this mode, before anything is read.

        Raises:
            ConfigError: names the key, and says what to change.
        """
        return

    @abstractmethod
    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        """Do it; see `framework.modes.session.Session`, in which every run is held.

        Returns:
            what `result.json` holds.
        """

    def show(self, folders: Sequence[Path]) -> bool:
        """Print what the runs in these directories found, at the end of one run or of a sweep.

        Returns:
            False: nothing was printed, and a single run is shown as the table of its result.
        """
        return False

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        """Dotted keys of a plain configuration that a run of this mode never reads: no settings of its result."""
        return ()
