"""How long until a block is used again, and what an LRU cache of that size would hit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework_report.figures.style import COLOURS, legend, new_axes, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style()
def draw(edges: npt.NDArray[Any], counts: npt.NDArray[Any], num_references: int, *, title: str = "") -> Figure:
    """A histogram of reuse distances, with the LRU hit rate by block at that capacity.

    Args:
        edges: (N + 1,) bounds of the bins, blocks, ascending.
        counts: (N,) references in each.
        num_references: of the whole trace, first uses included.
    """
    total = max(1, num_references)
    figure = new_figure(height_in=3.2)
    axes = new_axes(figure)
    axes.bar(edges[:-1], 100 * counts / total, width=np.diff(edges), align="edge", color=COLOURS[5], label="references")
    axes.set_xscale("log")
    axes.set_xlabel("reuse distance, or capacity (blocks)")
    axes.set_ylabel("block references, %")
    other = axes.twinx()
    other.plot(edges[1:] - 1, 100 * np.cumsum(counts) / total, color=COLOURS[1], linewidth=2, label="LRU hit rate")
    other.set_ylabel("LRU hit rate by block, %")
    other.set_ylim(0, 100)
    if title:
        axes.set_title(title, fontsize="medium")
    legend(axes, 2)
    return figure
