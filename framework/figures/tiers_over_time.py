"""How full the tiers below the pool were, and how many requests waited for loads, step by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.figures.style import legend, new_axes, new_figure, series_style, short, styled
from framework.results.layout import METRICS
from framework.results.metric import is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE, ORDER = METRICS, 4
TITLE = "Tiers over time"
NOTE = "Blocks that each tier below the pool holds after each step, and requests whose blocks are being loaded."

_MOST_POINTS = 1500


@styled
def draw(records: Sequence[Mapping[str, Any]]) -> Figure | None:
    """A line a tier, and one of the requests that load below them; None with fewer than two records of tiers.

    Args:
        records: lines of `metrics.jsonl`, with `tier1_blocks` and so on, and `loading`.
    """
    records = [record for record in records if is_number(record.get("tier1_blocks"))]
    if len(records) < 2:
        return None
    records = records[:: -(-len(records) // _MOST_POINTS)]
    timed = all(is_number(record.get("time_s")) for record in records)
    x = [float(record["time_s"]) if timed else float(place) for place, record in enumerate(records)]
    tiers = sorted(int(match[1]) for key in records[0] if (match := re.fullmatch(r"tier(\d+)_blocks", key)))
    figure = new_figure(height_in=3.8)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(3, 2))
    held, waiting = new_axes(parts[0, 0]), new_axes(parts[1, 0])
    for index, tier in enumerate(tiers):
        look = {**series_style(index), "marker": ""}
        held.plot(x, [float(record.get(f"tier{tier}_blocks", 0)) for record in records], label=f"tier {tier}", **look)
    held.set_ylabel("blocks")
    held.set_ylim(bottom=0)
    held.yaxis.set_major_formatter(lambda value, _: short(value))
    legend(held, len(tiers))
    waiting.step(x, [float(record.get("loading", 0)) for record in records], where="post", linewidth=1.0)
    waiting.set_ylabel("loading")
    waiting.set_xlabel("time, s" if timed else "step")
    waiting.set_ylim(bottom=0)
    for axes in (held, waiting):
        axes.margins(x=0)
    return figure
