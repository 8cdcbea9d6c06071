"""A number a row with its interval: settings best first, or differences from a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from framework_report.figures.style import COLOURS, INK, MARKERS, clipped, legend, new_axes, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting, or one challenger.

    Attributes:
        interval: (low, high) of the value; None for none.
        parts: what the value is the mean of, drawn as open circles.
        baseline: drawn as a square of another colour.
    """

    label: str
    value: float
    interval: tuple[float, float] | None = None
    parts: Sequence[float] = ()
    baseline: bool = False


@style()
def draw(rows: Sequence[Row], *, x_label: str, zero: bool = False) -> Figure:
    """A row for each, the first on top.

    Args:
        zero: a line at 0, where that is the baseline.
    """
    figure = new_figure(height_in=1.2 + 0.26 * len(rows))
    axes = new_axes(figure, grid="x")
    if zero:
        axes.axvline(0, color=INK, linewidth=0.8)
    with_parts = any(row.parts for row in rows)
    for place, row in enumerate(rows):
        first = with_parts and place == 0
        axes.plot(
            list(row.parts), [place] * len(row.parts), linestyle="none", marker=MARKERS[0], markersize=4,
            markerfacecolor="none", color=COLOURS[1], label="each setting" if first else None,
        )  # fmt: skip
        low, high = row.interval or (row.value, row.value)
        axes.errorbar(
            row.value, place, xerr=[[max(0.0, row.value - low)], [max(0.0, high - row.value)]],
            fmt=MARKERS[row.baseline], color=COLOURS[row.baseline], capsize=3 if row.interval else 0,
            label="over all" if first else None,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [clipped(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # half a row above the first and below the last, for their markers
    axes.set_xlabel(x_label)
    if with_parts:
        legend(axes, 2)
    return figure
