"""One metric over another, such as latency over throughput: a line a series along the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from framework.figures.curve import Line
from framework.figures.style import clipped, legend, new_axes, new_figure, series_style, short, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def draw(lines: Sequence[Line], *, x_label: str, y_label: str) -> Figure:
    """The lines over one pair of axes, the y axis from 0."""
    figure = new_figure(height_in=3.2 + 0.17 * -(-len(lines) // 3))
    axes = new_axes(figure, grid="both")
    for index, line in enumerate(lines):
        axes.plot(list(line.x), list(line.y), label=clipped(f" {line.label}"), **series_style(index))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=0)
    legend(axes, len(lines))
    return figure
