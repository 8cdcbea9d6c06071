"""The pictures of the gap experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from framework.figures.style import COLOURS, MARKERS, new_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("lru", "hazard", "pinned optimum", "published optimum")


def anatomy(rows: Sequence[dict[str, Any]], traces: Sequence[str]) -> Figure:
    """Hit rate by block over the capacity, one panel a trace."""
    figure = new_figure(7.0, 3.2 * len(traces))
    for place, trace in enumerate(traces):
        axes = new_axes(figure, len(traces), 1, place + 1) if len(traces) > 1 else new_axes(figure)
        for index, policy in enumerate(name for name in DRAWN if any(row["policy"] == name for row in rows)):
            mine = [row for row in rows if row["trace"] == trace and row["policy"] == policy]
            axes.plot([row["capacity_blocks"] for row in mine],
                      [100 * row["hit_blocks"] / row["references"] for row in mine],
                      color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], markersize=4,
                      linestyle="--" if "optimum" in policy else "-", label=policy)  # fmt: skip
        axes.set(xscale="log", xlabel="capacity, blocks", ylabel="hit rate by block, %", title=trace)
        axes.legend(fontsize=8)
    return figure


def information(rows: Sequence[dict[str, Any]]) -> Figure:
    """Share of the gap closed over the error of what clients foretell."""
    figure = new_figure(7.0, 3.4)
    axes = new_axes(figure)
    series = list(dict.fromkeys((row["trace"], row["foretold"]) for row in rows if row["foretold"] != "nothing"))
    for index, (trace, foretold) in enumerate(series):
        mine = [row for row in rows if (row["trace"], row["foretold"]) == (trace, foretold)]
        axes.plot([row["error"] for row in mine], [100 * row["closed"] for row in mine], label=f"{trace}: {foretold}",
                  color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)])  # fmt: skip
    axes.set(xlabel="error: share of wrong labels, or sigma of the log of times", ylabel="gap closed, %")
    axes.legend(fontsize=8)
    return figure
