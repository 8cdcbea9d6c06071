"""Where the pool's slots went over a run: live, wasted in each way, idle in the cache, free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from framework.files.jsonl import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
_LAYERS = {
    "utilisation": ("live", "#0072B2"),
    "waste_internal": ("internal waste", "#E69F00"),
    "waste_reserved": ("reserved", "#D55E00"),
    "waste_external": ("external waste", "#CC79A7"),
    "cached_idle": ("cached, idle", "#56B4E9"),
}


def memory_timeline(records: Sequence[JsonObject]) -> Figure | None:
    """A stack of slot shares over time, from the lines of a run's `metrics.jsonl`.

    Args:
        records: lines with any of `utilisation`, `waste_internal`, `waste_reserved`, `waste_external` (shares of the
            reserved slots) and `cached_idle` (share of the pool); the x axis is `time_s` where given, else `step`.

    Returns:
        A figure that no pyplot state holds, or None when fewer than two lines have such a share.
    """
    shown = [record for record in records if any(record.get(key) is not None for key in _LAYERS)]
    if len(shown) < 2:
        return None
    from matplotlib.figure import Figure

    axis = "time_s" if all(record.get("time_s") is not None for record in shown) else "step"
    present = [key for key in _LAYERS if any(record.get(key) is not None for record in shown)]
    stacked = [key for key in present if key != "cached_idle"]
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    x = [record[axis] for record in shown]
    if stacked:
        axes.stackplot(
            x,
            [_column(shown, key) for key in stacked],
            labels=[_LAYERS[key][0] for key in stacked],
            colors=[_LAYERS[key][1] for key in stacked],
            linewidth=0,
        )
    if "cached_idle" in present:
        label, colour = _LAYERS["cached_idle"]
        axes.plot(x, _column(shown, "cached_idle"), label=f"{label} (of the pool)", color=colour, linewidth=1.5)
    axes.set_xlabel("time, s" if axis == "time_s" else "step")
    axes.set_ylabel("share of reserved slots")
    axes.set_ylim(0, 1)
    axes.margins(x=0)
    figure.legend(loc="outside upper center", ncols=len(present), frameon=False, fontsize="small")
    return figure


def _column(records: Sequence[JsonObject], key: str) -> list[Any]:
    return [record[key] if record.get(key) is not None else 0.0 for record in records]
