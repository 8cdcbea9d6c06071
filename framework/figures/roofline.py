"""Where do a backend's cells lie under the device's ceilings?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roofline(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Achieved TFLOP/s over FLOP a byte, both axes logarithmic, with the ceilings of the same run; None without times.

    Args:
        rows: of kernel.jsonl, of one backend or several; those without a measured time are left out. The ceilings
            are those of each (device, dtype) among them.
    """
    timed = [row for row in rows if row.get("time_s")]
    if not timed:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    intensities = [row["flop"] / row["bytes"] for row in timed]
    low, high = min(intensities) / 3, max(intensities) * 3
    roofs = {
        (row["device_model"], row["dtype"]): (row["ceiling_gb_per_s"], row["ceiling_tflop_per_s"]) for row in timed
    }
    for (model, dtype), (gb, tflop) in roofs.items():
        ridge = tflop * 1e3 / gb
        points = sorted({low, min(max(ridge, low), high), high})
        axes.plot(points, [min(x * gb / 1e3, tflop) for x in points], color="0.35", linewidth=1.2)
        label = f"{model}, {dtype}: {gb:,.3g} GB/s, {tflop:,.3g} TFLOP/s, measured in this run"
        axes.annotate(label, (high, tflop), xytext=(0, 4), textcoords="offset points", fontsize=7, ha="right")
    for series in dict.fromkeys(_series(row) for row in timed):
        chosen = [row for row in timed if _series(row) == series]
        axes.scatter(
            [row["flop"] / row["bytes"] for row in chosen],
            [row["tflop_per_s"] for row in chosen],
            s=22,
            marker="o" if "decode" in series else "^",
            label=series,
            zorder=3,
        )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte, least needed", ylabel="TFLOP/s achieved (median)")
    axes.grid(which="major", color="0.9")
    axes.legend(fontsize=8, loc="lower right")
    axes.set_title(f"Attention under the roofline, {timed[0]['date'][:10]}", fontsize=10)
    return figure


def _series(row: Mapping[str, Any]) -> str:
    ragged = " ragged" if row["lengths"] == "ragged" else ""
    return f"{row['backend']} {row['work']}{ragged}"
