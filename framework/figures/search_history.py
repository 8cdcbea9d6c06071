"""The values that a search's trials reached, in the order of asking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from framework.figures.style import COLOURS, legend, new_axes, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def draw(
    values: Sequence[tuple[int, float | None]], best_so_far: Sequence[tuple[int, float]], *, y_label: str
) -> Figure:
    """A dot a trial, a step where the best was beaten, a cross where one failed.

    Args:
        values: (number from 1, value or None) of each trial; at least one has a value.
        best_so_far: (number, value) of those that beat all before.
    """
    from matplotlib.ticker import MaxNLocator

    good = [(number, value) for number, value in values if value is not None]
    failed = [number for number, value in values if value is None]
    figure = new_figure()
    axes = new_axes(figure)
    axes.scatter([number for number, _ in good], [value for _, value in good], color=COLOURS[0], s=22, zorder=3,
                 label="a trial")  # fmt: skip
    numbers = [*(number for number, _ in best_so_far), values[-1][0]]
    steps = [*(value for _, value in best_so_far), best_so_far[-1][1]]
    axes.step(numbers, steps, where="post", color=COLOURS[1], linewidth=1.6, label="best so far")
    if failed:
        bottom = min(value for _, value in good)
        axes.scatter(failed, [bottom] * len(failed), color=COLOURS[3], marker="x", s=30, label="failed")
    axes.set_xlabel("trial")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, 3 if failed else 2)
    return figure
