"""One metric of each setting as dots with intervals, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from framework.figures.style import COLOURS, MARKERS, clipped, new_axes, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A setting.

    Attributes:
        interval: (low, high); None for none.
        baseline: drawn as a square of another colour.
    """

    label: str
    value: float
    interval: tuple[float, float] | None = None
    baseline: bool = False


@styled
def draw(dots: Sequence[Dot], *, x_label: str) -> Figure:
    """A row for each dot, the first on top."""
    figure = new_figure(height_in=1.0 + 0.26 * len(dots))
    axes = new_axes(figure, grid="x")
    for row, dot in enumerate(dots):
        low, high = dot.interval or (dot.value, dot.value)
        bar = [[max(0.0, dot.value - low)], [max(0.0, high - dot.value)]] if dot.interval else None
        marker, colour = MARKERS[dot.baseline], COLOURS[dot.baseline]
        axes.errorbar(dot.value, row, xerr=bar, fmt=marker, color=colour, capsize=3)
    axes.set_yticks(range(len(dots)), [clipped(dot.label) for dot in dots])
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    return figure
