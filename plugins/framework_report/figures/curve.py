"""One metric over a size or over another metric: a line a series, with reference curves such as the optimum's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework_report.figures.style import (
    INK,
    clipped,
    legend,
    new_axes,
    new_figure,
    power_ticks,
    series_style,
    short,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Interval = tuple[float, float] | None
_MOST_OVER = 1.3  # of the greatest point: where an axis ends, however far its bars reach
_SHORT_LABEL = 24  # letters, of which a legend has room for three side by side
REFERENCE_DASHES = ("--", ":", "-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series.

    Attributes:
        x, y: equally many; x ascending.
        intervals: (low, high) of each y, None where it has none; empty for none at all. x_intervals: of each x.
        reference: drawn thin and grey, as what the series are held against.
        look: the number of its colour and marker; None takes the next.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[Interval] = ()
    x_intervals: Sequence[Interval] = ()
    reference: bool = False
    look: int | None = None


@style()
def draw(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    measured_x: bool = False,
    x_from_zero: bool = True,
) -> Figure:
    """The lines over one pair of axes.

    Args:
        lines: at least one; x is logarithmic where it is spread like powers.
        measured_x: x was measured like y, as throughput beside latency: x is linear, both axes begin at 0, and bars
            that reach far beyond all points are cut.
        x_from_zero: a measured x begins at 0; else its axis is as wide as the points.
    """
    figure = new_figure(height_in=3.0 + 0.17 * -(-len(lines) // 3))
    axes = new_axes(figure, grid="both" if measured_x else "y")
    index = references = 0
    for line in lines:
        if line.reference:
            look = REFERENCE_DASHES[references % len(REFERENCE_DASHES)]
            options: dict[str, Any] = {"color": INK, "alpha": 0.6, "linestyle": look, "linewidth": 1.6}
            references += 1
        else:
            options, index = series_style(index if line.look is None else line.look), index + 1
            if measured_x and len(line.x) == 1:
                options["linestyle"] = "none"
        # Matplotlib leaves labels that begin with an underscore out of a legend.
        label = clipped(f" {line.label}" if line.label.startswith("_") else line.label)
        # Every point lies within the axes; one on the edge is drawn whole.
        (drawn,) = axes.plot(list(line.x), list(line.y), label=label, clip_on=not measured_x, **options)
        bars: dict[str, Any] = {
            "fmt": "none", "capsize": 2, "elinewidth": 0.9, "color": drawn.get_color(), "alpha": 0.55,
        }  # fmt: skip
        for x, interval in zip(line.x, line.intervals, strict=False):
            if interval is not None:
                axes.errorbar(x, interval[0], yerr=[[0.0], [interval[1] - interval[0]]], **bars)
        for y, interval in zip(line.y, line.x_intervals, strict=False):
            if interval is not None:
                axes.errorbar(interval[0], y, xerr=[[0.0], [interval[1] - interval[0]]], **bars)
    if measured_x:
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        xs = [x for line in lines for x in line.x]
        if x_from_zero:
            axes.set_xlim(0, _end(xs, [i for line in lines for i in line.x_intervals]))
        else:
            edge = 0.05 * (max(xs) - min(xs)) or 0.05 * abs(max(xs)) or 1.0  # all points may have one x
            axes.set_xlim(min(xs) - edge, max(xs) + edge)
        axes.set_ylim(0, _end([y for line in lines for y in line.y], [i for line in lines for i in line.intervals]))
    else:
        power_ticks(axes, sorted({x for line in lines for x in line.x}))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if title:
        axes.set_title(title, fontsize="medium")
    legend(axes, len(lines), columns=3 if max(len(line.label) for line in lines) <= _SHORT_LABEL else 2)
    return figure


def _end(points: Sequence[float], intervals: Sequence[Interval]) -> float:
    """Where an axis from 0 ends: beyond every point, and beyond the bars unless they are far longer."""
    most = max(points) or 1.0
    bars = max((interval[1] for interval in intervals if interval is not None), default=0.0)
    return max(1.05 * most, min(1.02 * bars, _MOST_OVER * most))
