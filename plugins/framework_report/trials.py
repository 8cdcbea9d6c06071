"""What a search tried, in which order, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from framework.files.atomic import write_json
from framework.results.reading import read_json

SEARCH = "search.json"


@dataclass(frozen=True, slots=True)
class Trial:
    """One question of the sampler.

    Attributes:
        number: from 1, in the order of asking.
        folder: of the run, below the search's; trials that ask the same share it.
        overrides: what was varied.
        value: of the metric; None where it failed, and then the reason.
    """

    number: int
    folder: str
    overrides: Sequence[str]
    value: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trials:
    """All finished trials of a search for the largest, or smallest, value of one metric."""

    metric: str
    maximize: bool
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The first of the best; None when none was good."""
        sign = -1 if self.maximize else 1
        good = [(sign * trial.value, trial.number) for trial in self.trials if trial.value is not None]
        return self.trials[min(good)[1] - 1] if good else None


def write_trials(folder: Path, trials: Trials) -> None:
    """Leave `search.json` in the search's folder, whole or not at all."""
    write_json(folder / SEARCH, asdict(trials))


def read_trials(folder: Path) -> Trials | None:
    """What `write_trials` left; None where there is none that can be read."""
    record = read_json(folder / SEARCH)
    if record is None:
        return None
    try:
        return Trials(record["metric"], record["maximize"], tuple(Trial(**trial) for trial in record["trials"]))
    except (KeyError, TypeError):
        return None
