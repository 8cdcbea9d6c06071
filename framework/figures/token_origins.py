"""Where prompt tokens came from: a Sankey diagram from prompts to the pool, the tiers below it, and computation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.figures.style import COLOURS, HATCHES, INK, new_axes, new_figure, short, styled
from framework.results.layout import REQUESTS
from framework.results.metric import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE, ORDER = REQUESTS, 5
TITLE = "Where prompt tokens came from"
NOTE = "All requests of the run; widths are proportional to tokens, to blocks in a cache-only replay."

_GAP = 0.08  # of the whole, between two origins
_LEFT, _RIGHT, _BAR = 0.0, 1.0, 0.04


@styled
def draw(records: Sequence[Mapping[str, Any]]) -> Figure | None:
    """One ribbon an origin; None where no tier lies below the pool.

    Args:
        records: lines of `requests.jsonl`, with `tier1_tokens` (or `tier1_blocks`) and so on.
    """
    origins, unit = _origins(records)
    total = sum(origins.values())
    if not total:
        return None
    figure = new_figure(height_in=2.6)
    axes = new_axes(figure, grid="")
    axes.set_axis_off()
    shown = {name: count for name, count in origins.items() if count}
    left, right = 1.0 + _GAP * (len(shown) - 1) / 2, 1.0 + _GAP * (len(shown) - 1)
    _bar(axes, _LEFT, left - 1.0, left, INK, "")
    axes.text(_LEFT - 0.03, left - 0.5, f"prompts\n{short(total)} {unit}", ha="right", va="center")
    for index, (name, count) in enumerate(shown.items()):
        share = count / total
        colour, hatch = COLOURS[index % len(COLOURS)], HATCHES[index % len(HATCHES)]
        _ribbon(axes, left, right, share, colour)
        _bar(axes, _RIGHT, right - share, right, colour, hatch)
        axes.text(_RIGHT + _BAR + 0.03, right - share / 2, f"{name}: {short(count)}, {100 * share:.1f} %", va="center")
        left, right = left - share, right - share - _GAP
    axes.set_xlim(-0.55, 2.1)
    axes.set_ylim(-0.02, 1.02 + _GAP * (len(shown) - 1))
    return figure


def _origins(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], str]:
    """Origin -> tokens or blocks, from the pool down to what was computed; nothing without tiers."""
    keys = {key for record in records for key in record}
    for unit, whole, found in (("tokens", "prompt_tokens", "cached_tokens"), ("blocks", "prompt_blocks", "hit_blocks")):
        tiers = sorted(int(match[1]) for key in keys if (match := re.fullmatch(rf"tier(\d+)_{unit}", key)))
        if tiers:
            below = {f"tier {tier}": _total(records, f"tier{tier}_{unit}") for tier in tiers}
            cached = _total(records, found)
            return {
                "the pool": max(0.0, cached - sum(below.values())),
                **below,
                "computed": max(0.0, _total(records, whole) - cached),
            }, unit
    return {}, ""


def _total(records: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(sum(record[key] for record in records if is_number(record.get(key))))


def _bar(axes: Axes, x: float, low: float, high: float, colour: str, hatch: str) -> None:
    axes.fill_between([x, x + _BAR], low, high, facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.4)


def _ribbon(axes: Axes, left: float, right: float, share: float, colour: str) -> None:
    """From `left` downwards on the left to `right` downwards on the right, both as wide as `share`."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    start, end = _LEFT + _BAR, _RIGHT
    middle = (start + end) / 2
    points = [
        (start, left), (middle, left), (middle, right), (end, right),
        (end, right - share), (middle, right - share), (middle, left - share), (start, left - share), (start, left),
    ]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.45, linewidth=0.0))
