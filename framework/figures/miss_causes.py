"""Where prompt tokens came from over the run: the shares of hits and of each cause of a miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.figures.style import COLOURS, HATCHES, legend, new_axes, new_figure, styled
from framework.misses.account import OUTCOMES, key_of
from framework.results.layout import REQUESTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE, ORDER = REQUESTS, 6
TITLE = "Why prompt tokens were computed"
NOTE = "Shares of the prompt tokens of neighbouring requests; needs run.explain=true."
_BINS = 60


@styled
def draw(records: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Stacked shares over requests; None of a run that does not say why it missed."""
    rows = [record for record in records if key_of("new", "tokens") in record]
    if not rows:
        return None
    keys = ["cached_tokens", *(key_of(outcome, "tokens") for outcome in OUTCOMES[1:])]
    tokens = np.array([[row.get(key) or 0 for key in keys] for row in rows], dtype=np.float64)
    bins = min(_BINS, len(rows))
    edges = np.linspace(0, len(rows), bins + 1).astype(int)
    sums = np.add.reduceat(tokens, edges[:-1], axis=0)
    shares = 100 * sums / np.maximum(1, sums.sum(axis=1, keepdims=True))
    figure = new_figure(height_in=2.9)
    axes = new_axes(figure)
    floor, shown = np.zeros(bins), 0
    for at, outcome in enumerate(OUTCOMES):
        if not tokens[:, at].any():
            continue
        top = floor + shares[:, at]
        axes.fill_between(
            edges, np.append(floor, floor[-1]), np.append(top, top[-1]), step="post", label=outcome, linewidth=0,
            facecolor=COLOURS[shown % len(COLOURS)], hatch=HATCHES[shown % len(HATCHES)], edgecolor="white",
        )  # fmt: skip
        floor, shown = top, shown + 1
    axes.set_xlim(0, len(rows))
    axes.set_ylim(0, 100)
    axes.set_xlabel("requests, in the order of the log")
    axes.set_ylabel("prompt tokens, %")
    legend(axes, shown)
    return figure
