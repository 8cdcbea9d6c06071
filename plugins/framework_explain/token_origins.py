"""Where prompt tokens came from over the run: the pool, tiers below it, and each cause of a miss."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.results.layout import REQUESTS
from framework.results.metric import is_number
from framework_explain.account import OUTCOMES, key_of
from framework_report.figures.style import COLOURS, HATCHES, column, legend, new_axes, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = REQUESTS
TITLE = "Where prompt tokens came from"
NOTE = (
    "Shares of the prompt tokens of neighbouring requests (of blocks in a cache-only replay with tiers); in the legend "
    "those of all requests. Causes of misses need observers=[explain]."
)
_BINS = 60

Records = Sequence[Mapping[str, Any]]


@style()
def draw(records: Records) -> Figure | None:
    """Stacked shares over requests; None of a run without tiers that does not say why it missed.

    Args:
        records: lines of `requests.jsonl`, with `tier1_tokens` (or `tier1_blocks`) and so on, or `missed_new_tokens`
            and so on.
    """
    records = [record for record in records if is_number(record.get("cached_tokens", record.get("hit_blocks")))]
    origins, unit = _origins(records)
    origins = {name: counts for name, counts in origins.items() if counts.any()}
    if not origins:
        return None
    counts = np.stack([*origins.values()])  # (origins, requests)
    bins = min(_BINS, len(records))
    edges = np.linspace(0, len(records), bins + 1).astype(int)
    sums = np.add.reduceat(counts, edges[:-1], axis=1)
    tops = np.cumsum(100 * sums / np.maximum(1, sums.sum(axis=0)), axis=0)
    figure = new_figure(height_in=2.9 + 0.1 * len(origins))
    axes = new_axes(figure)
    floor = np.zeros(bins)
    for index, (name, top) in enumerate(zip(origins, tops, strict=True)):
        share = 100 * counts[index].sum() / counts.sum()
        axes.fill_between(
            edges, np.append(floor, floor[-1]), np.append(top, top[-1]), step="post", linewidth=0,
            label=f"{name}, {share:.1f} %", facecolor=COLOURS[index % len(COLOURS)],
            hatch=HATCHES[index % len(HATCHES)], edgecolor="white",
        )  # fmt: skip
        floor = top
    axes.set_xlim(0, len(records))
    axes.set_ylim(0, 100)
    axes.set_xlabel("requests, in the order of the log")
    axes.set_ylabel(f"prompt {unit}, %")
    legend(axes, len(origins), columns=2)
    return figure


def _origins(records: Records) -> tuple[dict[str, npt.NDArray[np.float64]], str]:
    """Origin -> tokens or blocks of each request, from the pool down to what was computed; and which of the two."""
    keys = {key for record in records for key in record}

    for unit, whole, cached in (
        ("tokens", "prompt_tokens", "cached_tokens"),
        ("blocks", "prompt_blocks", "hit_blocks"),
    ):
        tiers = sorted(int(match[1]) for key in keys if (match := re.fullmatch(rf"tier(\d+)_{unit}", key)))
        explained = key_of("new", unit) in keys
        if not tiers and not explained:
            continue
        hits = {f"hit in tier {tier}": column(records, f"tier{tier}_{unit}") for tier in tiers}
        pool = np.maximum(0, column(records, cached) - sum(hits.values()))
        missed = {outcome: column(records, key_of(outcome, unit)) for outcome in OUTCOMES[1:]}
        if not explained:
            missed = {"computed": np.maximum(0, column(records, whole) - column(records, cached))}
        return {"hit in the pool" if tiers else "hit": pool, **hits, **missed}, unit
    return {}, ""
