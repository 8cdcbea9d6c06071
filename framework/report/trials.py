"""What did a search try, in which order, and what came of it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.figures.style import COLOURS, MARKERS, legend, new_axes, new_figure
from framework.files.atomic import write_json
from framework.report.curves import Plot
from framework.results.reading import read_json

if TYPE_CHECKING:
    from framework.report.study import Study

SEARCH = "search.json"
_ACROSS = 3  # panels side by side


@dataclass(frozen=True, slots=True, kw_only=True)
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
    overrides: tuple[str, ...]
    value: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """All finished trials of a search for the largest, or smallest, value of one metric."""

    metric: str
    maximize: bool
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The first of the best; None when none was good."""
        good = [(self._cost(trial.value), trial.number, trial) for trial in self.trials if trial.value is not None]
        return min(good)[2] if good else None

    def best_so_far(self) -> list[tuple[int, float]]:
        """(number, value) of each trial that beat all before."""
        steps: list[tuple[int, float]] = []
        for trial in self.trials:
            if trial.value is not None and (not steps or self._cost(trial.value) < self._cost(steps[-1][1])):
                steps.append((trial.number, trial.value))
        return steps

    def _cost(self, value: float) -> float:
        return -value if self.maximize else value


def write_trials(folder: Path, found: Trials) -> None:
    """Leave `search.json` in the search's folder, whole or not at all."""
    write_json(folder / SEARCH, asdict(found))


def read_trials(folder: Path) -> Trials | None:
    """What `write_trials` left; None where there is none that can be read."""
    found = read_json(folder / SEARCH)
    try:
        return found and Trials(
            metric=str(found["metric"]),
            maximize=bool(found["maximize"]),
            trials=tuple(Trial(**{**trial, "overrides": tuple(trial["overrides"])}) for trial in found["trials"]),
        )  # type: ignore[return-value]
    except (KeyError, TypeError):
        return None


def sentence(found: Trials) -> str:
    """The best trial in words."""
    best, failed = found.best, sum(trial.value is None for trial in found.trials)
    bad = f", {failed} failed" if failed else ""
    if best is None:
        return f"None of {len(found.trials)} trials was good"
    return (
        f"Best of {len(found.trials)} trials{bad}: {found.metric} {best.value:.6g} with {' '.join(best.overrides)} "
        f"(trial {best.number})"
    )


def trial_plots(study: Study, found: Trials) -> list[Plot]:
    """The search's history, and its metric over each thing that varied."""
    return [_history(found), _panels(study, found)] if found.best is not None else []


def _history(found: Trials) -> Plot:
    from matplotlib.ticker import MaxNLocator

    figure = new_figure()
    axes = new_axes(figure)
    good = [(trial.number, trial.value) for trial in found.trials if trial.value is not None]
    axes.scatter(
        [number for number, _ in good], [value for _, value in good], color=COLOURS[0], s=22, zorder=3, label="a trial"
    )
    steps = found.best_so_far()
    numbers = [*(number for number, _ in steps), found.trials[-1].number]
    values = [*(value for _, value in steps), steps[-1][1]]
    axes.step(numbers, values, where="post", color=COLOURS[1], linewidth=1.6, label="best so far")
    failed = [trial.number for trial in found.trials if trial.value is None]
    if failed:
        bottom = min(value for _, value in good)
        axes.scatter(failed, [bottom] * len(failed), color=COLOURS[3], marker="x", s=30, label="failed")
    axes.set_xlabel("trial")
    axes.set_ylabel(found.metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, 3 if failed else 2)
    note = f"{len(found.trials)} trials in the order the sampler asked for them."
    return Plot(name="history", title="History of the search", note=note, figure=figure)


def _panels(study: Study, found: Trials) -> Plot:
    """A panel for each varied setting: every good run a dot, the best a square."""
    runs = [row for row in study.good if isinstance(row.result.get(found.metric), (int, float))]
    best = found.best
    assert best is not None
    across = min(_ACROSS, len(study.keys))
    down = math.ceil(len(study.keys) / across)
    figure = new_figure(height_in=2.8 * down)
    for place, key in enumerate(study.keys):
        axes = new_axes(figure, down, across, place + 1)
        pairs = [(row.settings.get(key), float(row.result[found.metric]), row.path.name == best.folder) for row in runs]
        _panel(axes, key, pairs)
        if place % across == 0:
            axes.set_ylabel(found.metric)
    note = f"A dot is a run; the square is the best trial, {best.number}."
    return Plot(name="varied", title=f"{found.metric} over what varied", note=note, figure=figure)


def _panel(axes: Any, key: str, pairs: Sequence[tuple[Any, float, bool]]) -> None:
    numeric = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x, _, _ in pairs)
    names = sorted({str(x) for x, _, _ in pairs})
    for x, y, is_best in pairs:
        marker, colour = (MARKERS[1], COLOURS[1]) if is_best else (MARKERS[0], COLOURS[0])
        place, size = (x if numeric else names.index(str(x))), 36 if is_best else 18
        axes.scatter(place, y, marker=marker, color=colour, s=size, zorder=3 if is_best else 2)
    if not numeric:
        axes.set_xticks(
            range(len(names)), names, rotation=30 if len(names) > 3 else 0, ha="right" if len(names) > 3 else "center"
        )
        axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(key)
