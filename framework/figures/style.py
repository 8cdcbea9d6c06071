"""How every plot looks: colours told apart by colour-blind readers, markers and dashes besides, ink of the page."""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its black and yellow: these six stand out on white and on near-black alike.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES: tuple[str, ...] = ("-", "--", "-.", ":")
HATCHES = ("", "///", "\\\\\\", "...", "xxx", "++")
INK = "#010203"
"""Becomes the colour of the page's text in a page, and stands for black elsewhere."""

_RC = {
    "svg.fonttype": "none",  # text stays text: searchable, selectable, and in the page's own font
    "svg.hashsalt": "report",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.labelpad": 8.0,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
}


def new_figure(width_in: float = 7.0, height_in: float = 3.4) -> Figure:
    """An empty figure, held by no global state, transparent."""
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
    figure.patch.set_alpha(0.0)
    return figure


def new_axes(figure: Figure, *place: int, grid: str = "y", **options: Any) -> Axes:
    """Axes in our style on `figure`; place (rows, columns, number from 1) and options of `add_subplot`."""
    with _style():
        axes: Axes = figure.add_subplot(*place, **options)
        axes.patch.set_alpha(0.0)
        if grid:
            axes.grid(visible=True, axis=grid)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
    return axes


def as_svg(figure: Figure, title: str) -> str:
    """An `<svg>` element to stand in a page: scales to its column, ink follows the page, no reference outside."""
    buffer = io.StringIO()
    with _style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(title)}"', 1)


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series of this number; all three together repeat after 60."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[(index // len(COLOURS)) % len(DASHES)],
        "markersize": 5,
        "linewidth": 1.6,
    }


def legend(axes: Axes, count: int) -> None:
    """Below the axes when few series, at the side when many."""
    with _style():
        columns = min(count, 4)
        axes.figure.legend(loc="outside lower center", ncols=columns, fontsize="small")


def _style() -> AbstractContextManager[None]:
    from matplotlib import rc_context

    return rc_context(_RC)  # type: ignore[arg-type]


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
