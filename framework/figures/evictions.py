"""How many blocks had been published and evicted by each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.figures.style import COLOURS, legend, new_axes, new_figure, styled
from framework.results.layout import EVENTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE, ORDER = EVENTS, 2
TITLE = "Evictions"
NOTE = "The distance between the lines is what is findable."


@styled
def draw(events: Sequence[Mapping[str, Any]]) -> Figure | None:
    """How many blocks had been published and evicted by each step."""
    counts: dict[str, list[int]] = {"publish": [], "evict": []}
    for event in events:
        if (kind := event.get("event")) in counts:
            counts[kind].append(int(event["step"]))
    if not counts["evict"]:
        return None
    last = max(int(event["step"]) for event in events if "step" in event)
    figure = new_figure(height_in=2.6)
    axes = new_axes(figure)
    for index, (kind, name) in enumerate((("publish", "published"), ("evict", "evicted"))):
        steps, sums = np.unique(np.array(counts[kind], dtype=np.int64), return_counts=True)
        steps, sums = np.append(steps, last), np.append(sums, 0)
        axes.step(steps, np.cumsum(sums), where="post", label=name, color=COLOURS[index], linestyle=("-", "--")[index])
    axes.set_xlabel("step")
    axes.set_ylabel("blocks, cumulative")
    axes.set_ylim(bottom=0)
    legend(axes, 2)
    return figure
