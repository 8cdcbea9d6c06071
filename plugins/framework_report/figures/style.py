"""One style for all figures: colours that colour-blind readers distinguish, markers, dashes, and the page's own ink.

Figures are drawn narrow, so that their text can still be read where a page is as wide as a phone.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError
from framework.files.atomic import beside
from framework.results.metric import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 4.8
# Okabe and Ito's palette without its black and yellow: these six stand out on white and on near-black alike.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES: tuple[str, ...] = ("-", "--", "-.", ":")
HATCHES = ("", "///", "\\\\\\", "...", "xxx", "++")
FORMATS = (".pdf", ".svg", ".png")
INK = "#010203"
"""Becomes the colour of the page's text in a page, and stands for black elsewhere."""

_RC = {
    "svg.fonttype": "none",  # text stays text: searchable, selectable, and in the page's own font
    "svg.hashsalt": "report",
    "text.parse_math": False,  # a `$` in a setting is a `$`
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


@contextmanager
def style() -> Iterator[None]:
    """Our settings of matplotlib, in a `with` block or over a function; a letter that the font lacks is no warning."""
    from matplotlib import rc_context

    with rc_context(_RC), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph|constrained_layout not applied")
        yield


@style()
def new_figure(width_in: float = WIDTH_IN, height_in: float = 3.2) -> Figure:
    """An empty figure, held by no global state, transparent."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    figure.patch.set_alpha(0.0)
    return figure


@style()
def new_axes(figure: Figure, *place: int, grid: str = "y", **options: Any) -> Axes:
    """Axes in our style on `figure`; place (rows, columns, number from 1) and options of `add_subplot`."""
    axes: Axes = figure.add_subplot(*place, **options)
    axes.patch.set_alpha(0.0)
    if grid:
        axes.grid(visible=True, axis=grid)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    return axes


@style()
def as_svg(figure: Figure, title: str) -> str:
    """An `<svg>` element to stand in a page: scales to its column, ink follows the page, no reference outside."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series of this number; all three together repeat after 60."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[(index // len(COLOURS)) % len(DASHES)],
        "markersize": 5,
        "linewidth": 1.6,
    }


@style()
def legend(axes: Axes, count: int, columns: int = 3) -> None:
    """Below the axes."""
    axes.figure.legend(loc="outside lower center", ncols=min(count, columns), fontsize="small")


def power_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic x axis where the values are spread like powers; a tick at each value while these are few."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    if len(ticks) <= 6:
        axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number for an axis: 3000 as 3k."""
    for suffix, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def column(records: Sequence[Mapping[str, Any]], key: str) -> npt.NDArray[np.float64]:
    """One value of each record; 0 where it does not say."""
    return np.array([record[key] if is_number(record.get(key)) else 0 for record in records], dtype=np.float64)


def clipped(label: str) -> str:
    """A label that leaves room for the axes."""
    return label if len(label) <= 40 else f"{label[:39]}…"


@style()
def save(figure: Figure, path: Any, suffix: str = ".png") -> None:
    """Write a figure for use outside a page: on white, in our style; the same figure makes the same file.

    Args:
        path: or a stream. suffix: of `FORMATS`.

    Raises:
        OSError: the file cannot be written.
    """
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix)
    figure.savefig(path, format=suffix[1:], dpi=150, facecolor="white", metadata=undated)


def save_plot(figure: Figure, path: Path) -> None:
    """Write a figure to a file, whole or not at all.

    Raises:
        ConfigError: a suffix other than those of `FORMATS`.
        OSError: the file cannot be written.
    """
    require_format(path)
    with beside(path) as temporary:
        save(figure, temporary, path.suffix.lower())


def require_format(path: Path) -> None:
    """Refuse a file for a figure whose suffix names no format, before anything is computed for it.

    Raises:
        ConfigError: it does not.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"a plot is a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file, found {str(path)!r}")
