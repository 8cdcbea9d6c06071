"""Sequences over steps, with what each was forked from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.results.layout import EVENTS
from framework_report.figures.style import COLOURS, INK, new_axes, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = EVENTS
TITLE = "Fork tree"
NOTE = "Solid: a request's first sequence; dashed: a fork of it, which shares its blocks until it writes."

_MOST_SEQUENCES = 200


@style()
def draw(events: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Sequences over steps: a line while one lives, an arrow where it was forked from its parent."""
    births: dict[int, tuple[int, int | None]] = {}
    deaths: dict[int, int] = {}
    for event in events:
        kind, sequence, step = event.get("event"), event.get("sequence"), int(event.get("step", 0))
        if kind == "fork":
            births.setdefault(int(event["sequence"]), (step, int(event["parent"])))
        elif kind == "step":
            for number in event["sequences"]:
                births.setdefault(int(number), (step, None))
                deaths[int(number)] = step
        elif sequence is not None and kind == "admit":
            births.setdefault(int(sequence), (step, None))
    families = _families(births)
    if not families or len(families) > _MOST_SEQUENCES:
        return None
    figure = new_figure(height_in=min(7.0, 1.4 + 0.13 * len(families)))
    axes = new_axes(figure, grid="x")
    place = {sequence: index for index, sequence in enumerate(families)}
    for sequence, index in place.items():
        start, parent = births[sequence]
        end = max(deaths.get(sequence, start), start)
        colour = COLOURS[0] if parent is None else COLOURS[1]
        axes.hlines(index, start, end + 0.8, color=colour, linewidth=2, linestyle="-" if parent is None else "--")
        if parent in place:
            axes.annotate(
                "", (start, index), (start, place[parent]),
                arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
    axes.set_yticks(range(len(families)), [str(number) for number in families], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("step")
    axes.set_ylabel("sequence")
    return figure


def _families(births: dict[int, tuple[int, int | None]]) -> list[int]:
    """Sequences of requests that forked, by family; a parent has a lower number than its children."""

    def root(sequence: int) -> int:
        parent = births[sequence][1]
        return sequence if parent is None or parent not in births else root(parent)

    roots = {sequence: root(sequence) for sequence in births}
    sizes = Counter(roots.values())
    return sorted((sequence for sequence in births if sizes[roots[sequence]] > 1), key=lambda s: (roots[s], s))
