"""What a search's trials reached: in the order of asking, and over each setting that varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from framework_report.figures.style import COLOURS, MARKERS, legend, new_axes, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 2  # panels side by side

Point = tuple[Any, float, bool]


@style()
def draw(
    values: Sequence[float | None], panels: Mapping[str, Sequence[Point]], *, maximize: bool, y_label: str
) -> Figure:
    """A panel of all trials over their number, with the best so far; below it one for each setting.

    Args:
        values: of the trials from the first on; None where one failed. At least one has a value.
        panels: setting -> (its value, what was reached, whether that is the best trial) of each good run.
    """
    down = math.ceil(len(panels) / _ACROSS)
    figure = new_figure(height_in=3.2 + 2.4 * down)
    history, *below = figure.subfigures(
        1 + bool(panels), 1, squeeze=False, height_ratios=[3.2, 2.4 * down][: 1 + bool(panels)]
    )[:, 0]
    _history(new_axes(history), values, maximize, y_label)
    for place, (key, points) in enumerate(panels.items()):
        axes = new_axes(below[0], down, min(_ACROSS, len(panels)), place + 1)
        _panel(axes, key, points)
        if place % _ACROSS == 0:
            axes.set_ylabel(y_label)
    return figure


def _history(axes: Any, values: Sequence[float | None], maximize: bool, y_label: str) -> None:
    """A dot a trial, a step where the best was beaten, a cross where one failed."""
    from matplotlib.ticker import MaxNLocator

    reached = np.array([math.nan if value is None else value for value in values])
    numbers, failed = np.arange(1, len(values) + 1), np.isnan(reached)
    axes.scatter(numbers, reached, color=COLOURS[0], s=22, zorder=3, label="a trial")
    best = (np.fmax if maximize else np.fmin).accumulate(reached)
    axes.step(numbers, best, where="post", color=COLOURS[1], linewidth=1.6, label="best so far")
    if failed.any():
        bottom = np.full(failed.sum(), np.nanmin(reached))
        axes.scatter(numbers[failed], bottom, color=COLOURS[3], marker="x", s=30, label="failed")
    axes.set_xlabel("trial")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, 3)


def _panel(axes: Any, key: str, points: Sequence[Point]) -> None:
    """A dot a run, the best a square; names side by side where the setting is no number."""
    numeric = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x, _, _ in points)
    names = sorted({str(x) for x, _, _ in points})
    for x, y, is_best in points:
        place, size = (x if numeric else names.index(str(x))), 36 if is_best else 18
        axes.scatter(place, y, marker=MARKERS[is_best], color=COLOURS[is_best], s=size, zorder=2 + is_best)
    if not numeric:
        slanted = len(names) > 2
        axes.set_xticks(range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center")
        axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(key)
