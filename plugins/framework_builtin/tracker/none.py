"""No tracker: the run directory alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.interfaces.tracker import RunLabel, Tracker


class NoTracker(Tracker):
    """Sends nothing anywhere; the run directory has everything, as it always does."""

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        """Nothing to do."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        """Nothing to do."""
