"""Where the slots of a run's pool were, step by step, and how full the tiers below it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.results.layout import METRICS
from framework.results.metric import is_number
from framework_report.figures.style import (
    COLOURS,
    HATCHES,
    INK,
    column,
    legend,
    new_axes,
    new_figure,
    series_style,
    short,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = METRICS
TITLE = "Memory over time"
NOTE = (
    "Slots of the pool after each step; the layers sum to the pool. With tiers below it: the blocks that each holds, "
    "and the requests whose blocks are being loaded."
)

# Name, colour and hatch, from the bottom of the stack up; free is the page itself.
_LAYERS = (
    ("live_slots", "live", COLOURS[0], HATCHES[0]),
    ("internal_slots", "internal", COLOURS[4], HATCHES[1]),
    ("reserved_slots", "reserved", COLOURS[1], HATCHES[2]),
    ("external_slots", "external", COLOURS[3], HATCHES[4]),
    ("cached_idle_slots", "cached, idle", COLOURS[5], HATCHES[3]),
    ("free_slots", "free", "none", HATCHES[0]),
)
_MOST_POINTS = 1500

Records = Sequence[Mapping[str, Any]]


@style()
def draw(records: Records) -> Figure | None:
    """A stack of slots over time, else over steps; None with fewer than two records of them.

    Args:
        records: lines of `metrics.jsonl`, with `live_slots` and the others; with tiers `tier1_blocks` and so on, and
            `loading`.
    """
    records = [record for record in records if is_number(record.get("live_slots"))]
    if len(records) < 2:
        return None
    records = records[:: -(-len(records) // _MOST_POINTS)]
    timed = all(is_number(record.get("time_s")) for record in records)
    x = column(records, "time_s") if timed else np.arange(len(records), dtype=np.float64)
    tiers = sorted(int(match[1]) for key in records[0] if (match := re.fullmatch(r"tier(\d+)_blocks", key)))
    heights = [3.0, 2.2, 1.4] if tiers else [3.0]
    figure = new_figure(height_in=sum(heights))
    panels = [new_axes(part) for part in figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]]
    _slots(panels[0], records, x)
    if tiers:
        _tiers(panels[1], panels[2], records, x, tiers)
    panels[-1].set_xlabel("time, s" if timed else "step")
    for axes in panels:
        axes.margins(x=0)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
    return figure


def _slots(axes: Axes, records: Records, x: npt.NDArray[np.float64]) -> None:
    bottom, shown = np.zeros(len(records)), 0
    for key, name, colour, hatch in _LAYERS:
        values = column(records, key)
        if not values.any():
            continue
        edge = INK if hatch or key == "free_slots" else colour
        axes.fill_between(
            x, bottom, bottom + values, step="post", label=name, facecolor=colour, edgecolor=edge, hatch=hatch,
            linewidth=0.4, alpha=0.85,
        )  # fmt: skip
        bottom, shown = bottom + values, shown + 1
    axes.set_ylabel("slots (tokens)")
    axes.set_ylim(0, max(1.0, float(bottom.max())))
    legend(axes, shown)


def _tiers(resident: Axes, waiting: Axes, records: Records, x: npt.NDArray[np.float64], tiers: Sequence[int]) -> None:
    for index, tier in enumerate(tiers):
        look = {**series_style(index), "marker": ""}
        resident.plot(x, column(records, f"tier{tier}_blocks"), label=f"tier {tier}", **look)
    resident.set_ylabel("blocks")
    resident.set_ylim(bottom=0)
    legend(resident, len(tiers))
    waiting.step(x, column(records, "loading"), where="post", linewidth=1.0)
    waiting.set_ylabel("loading")
    waiting.set_ylim(bottom=0)
