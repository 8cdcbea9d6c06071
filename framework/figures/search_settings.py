"""What a search reached over each setting that it varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.figures.style import COLOURS, MARKERS, new_axes, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 2  # panels side by side

Point = tuple[Any, float, bool]


@styled
def draw(panels: Mapping[str, Sequence[Point]], *, y_label: str) -> Figure:
    """A panel for each setting: every good run a dot, the best a square.

    Args:
        panels: setting -> (its value, what was reached, whether that is the best trial) of each run.
    """
    across = min(_ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = new_figure(height_in=2.6 * down)
    for place, (key, points) in enumerate(panels.items()):
        axes = new_axes(figure, down, across, place + 1)
        _panel(axes, key, points)
        if place % across == 0:
            axes.set_ylabel(y_label)
    return figure


def _panel(axes: Any, key: str, points: Sequence[Point]) -> None:
    numeric = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x, _, _ in points)
    names = sorted({str(x) for x, _, _ in points})
    for x, y, is_best in points:
        marker, colour = (MARKERS[1], COLOURS[1]) if is_best else (MARKERS[0], COLOURS[0])
        place, size = (x if numeric else names.index(str(x))), 36 if is_best else 18
        axes.scatter(place, y, marker=marker, color=colour, s=size, zorder=3 if is_best else 2)
    if not numeric:
        slanted = len(names) > 2
        axes.set_xticks(range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center")
        axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(key)
