"""Where the slots of a run's pool were, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.figures.style import COLOURS, HATCHES, INK, legend, new_axes, new_figure, short, styled
from framework.results.layout import METRICS
from framework.results.metric import is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE, ORDER = METRICS, 0
TITLE = "Memory over time"
NOTE = "Slots of the pool after each step; the layers sum to the pool."

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


@styled
def draw(records: Sequence[Mapping[str, Any]]) -> Figure | None:
    """A stack of slots over time, else over steps; None with fewer than two records of them.

    Args:
        records: lines of `metrics.jsonl`, with `live_slots` and the others.
    """
    records = [record for record in records if is_number(record.get("live_slots"))]
    if len(records) < 2:
        return None
    records = records[:: -(-len(records) // _MOST_POINTS)]
    axis = "time_s" if all(is_number(record.get("time_s")) for record in records) else "step"
    x = np.array([_number(record, axis, default=place) for place, record in enumerate(records)])
    figure = new_figure(height_in=3.0)
    axes = new_axes(figure)
    bottom, shown = np.zeros(len(records)), 0
    for key, name, colour, hatch in _LAYERS:
        values = np.array([_number(record, key) for record in records])
        if not values.any():
            continue
        edge = INK if hatch or key == "free_slots" else colour
        axes.fill_between(
            x, bottom, bottom + values, step="post", label=name, facecolor=colour, edgecolor=edge, hatch=hatch,
            linewidth=0.4, alpha=0.85,
        )  # fmt: skip
        bottom, shown = bottom + values, shown + 1
    axes.set_xlabel("time, s" if axis == "time_s" else "step")
    axes.set_ylabel("slots (tokens)")
    axes.set_ylim(0, max(1.0, float(bottom.max())))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.margins(x=0)
    legend(axes, shown)
    return figure


def _number(record: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    value: Any = record.get(key)
    return float(value) if is_number(value) else default
