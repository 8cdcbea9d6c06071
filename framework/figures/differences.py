"""Differences from the baseline in each setting, and pooled with their interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from framework.figures.style import COLOURS, INK, MARKERS, clipped, legend, new_axes, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One challenger.

    Attributes:
        pooled: over all settings.
        interval: (low, high) of the pooled difference; None where nothing independent repeats.
        settings: the difference in each setting.
    """

    label: str
    pooled: float
    interval: tuple[float, float] | None
    settings: Sequence[float]


@styled
def draw(rows: Sequence[Row], *, x_label: str) -> Figure:
    """A row for each challenger, the first on top; 0 is the baseline."""
    figure = new_figure(height_in=1.2 + 0.26 * len(rows))
    axes = new_axes(figure, grid="x")
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, row in enumerate(rows):
        first = place == 0
        axes.plot(
            list(row.settings), [place] * len(row.settings), linestyle="none", marker=MARKERS[0], markersize=4,
            markerfacecolor="none", color=COLOURS[0], label="each setting" if first else None,
        )  # fmt: skip
        low, high = row.interval or (row.pooled, row.pooled)
        axes.errorbar(
            row.pooled, place, xerr=[[max(0.0, row.pooled - low)], [max(0.0, high - row.pooled)]], fmt=MARKERS[3],
            markersize=6, color=COLOURS[1], capsize=3, label="pooled" if first else None,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [clipped(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # half a row above the first and below the last, for their markers
    axes.set_xlabel(x_label)
    legend(axes, 2)
    return figure
