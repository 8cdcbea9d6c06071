"""A backend's cells under the ceilings of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework_report.figures.style import INK, legend, new_axes, new_figure, series_style, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style()
def draw(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Achieved TFLOP/s over FLOP a byte, both axes logarithmic, with the ceilings of the same run; None without times.

    Args:
        rows: of kernel.jsonl, of one backend or several; those without a measured time are left out. The ceilings
            are those of each (device, dtype) among them.
    """
    timed = [row for row in rows if row.get("time_s")]
    if not timed:
        return None
    figure = new_figure(height_in=3.8)
    axes = new_axes(figure, grid="both")
    intensities = [row["flop"] / row["bytes"] for row in timed]
    low, high = min(intensities) / 3, max(intensities) * 3
    roofs = {
        (row["device_model"], row["dtype"]): (row["ceiling_gb_per_s"], row["ceiling_tflop_per_s"]) for row in timed
    }
    for (model, dtype), (gb, tflop) in roofs.items():
        ridge = tflop * 1e3 / gb
        points = sorted({low, min(max(ridge, low), high), high})
        axes.plot(points, [min(x * gb / 1e3, tflop) for x in points], color=INK, alpha=0.6, linewidth=1.2)
        label = f"{model}, {dtype}\n{gb:,.3g} GB/s, {tflop:,.3g} TFLOP/s, measured"
        axes.annotate(label, (high, tflop), xytext=(0, 4), textcoords="offset points", fontsize="small", ha="right")
    names = list(dict.fromkeys(_series(row) for row in timed))
    for index, series in enumerate(names):
        chosen = [row for row in timed if _series(row) == series]
        look = series_style(index)
        axes.scatter(
            [row["flop"] / row["bytes"] for row in chosen],
            [row["tflop_per_s"] for row in chosen],
            s=24,
            color=look["color"],
            marker=look["marker"],
            label=series,
            zorder=3,
        )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte, least needed", ylabel="TFLOP/s achieved (median)")
    axes.margins(y=0.15)
    axes.set_title(f"Attention under the roofline, {str(timed[0]['date'])[:10]}", fontsize="medium")
    legend(axes, len(names), columns=2)
    return figure


def _series(row: Mapping[str, Any]) -> str:
    ragged = " ragged" if row["lengths"] == "ragged" else ""
    return f"{row['backend']} {row['work']}{ragged}"
