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

REFERENCE_DASHES = ("--", ":", "-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series.

    Attributes:
        x, y: equally many; x ascending.
        intervals: (low, high) of each y, None where it has none; empty for none at all.
        reference: drawn thin and grey, as what the series are held against.
        look: the number of its colour and marker; None takes the next.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[tuple[float, float] | None] = ()
    reference: bool = False
    look: int | None = None


@style()
def draw(lines: Sequence[Line], *, x_label: str, y_label: str, title: str = "", measured_x: bool = False) -> Figure:
    """The lines over one pair of axes.

    Args:
        lines: at least one; x is logarithmic where it is spread like powers.
        measured_x: x was measured like y, as throughput beside latency: x is linear, y begins at 0.
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
        # Matplotlib leaves labels that begin with an underscore out of a legend.
        label = clipped(f" {line.label}" if line.label.startswith("_") else line.label)
        (drawn,) = axes.plot(list(line.x), list(line.y), label=label, **options)
        for x, interval in zip(line.x, line.intervals, strict=False):
            if interval is not None:
                axes.errorbar(
                    x, interval[0], yerr=[[0.0], [interval[1] - interval[0]]], fmt="none", capsize=2, elinewidth=0.9,
                    color=drawn.get_color(), alpha=0.55,
                )  # fmt: skip
    if measured_x:
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.set_ylim(bottom=0)
    else:
        power_ticks(axes, sorted({x for line in lines for x in line.x}))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if title:
        axes.set_title(title, fontsize="medium")
    legend(axes, len(lines))
    return figure
