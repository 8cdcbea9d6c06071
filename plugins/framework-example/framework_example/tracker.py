"""The numbers of a run as StepLines writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from framework.errors import ConfigError
from framework.interfaces.tracker import RunLabel, Tracker


class StepLines(Tracker):
    """One line a step in a text file of the run's directory."""

    def __init__(self, *, file: str = "step_lines.tsv", every: int = 1) -> None:
        if every < 1:
            raise ConfigError(f"tracker.every must be at least 1, found {every}")
        self.file, self.every = file, every
        self._out: TextIO | None = None

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        self._out = (folder / self.file).open("w", encoding="utf-8")
        self._out.write(f"run\t{label.name}\n")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._out is not None and step % self.every == 0:
            self._out.write("\t".join([str(step), *(f"{key}={value}" for key, value in metrics.items())]) + "\n")

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        if self._out is not None:
            self._out.write(f"end\t{'failed' if failed else 'ok'}\thit_rate={summary.get('hit_rate')}\n")
            self._out.close()
            self._out = None
