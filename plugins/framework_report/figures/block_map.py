"""Which block held findable content, from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.results.layout import EVENTS
from framework_report.figures.style import COLOURS, INK, legend, new_axes, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = EVENTS
TITLE = "Block map"
NOTE = "A line while a block's content can be found by its hash; blanks are free, or not yet full."

_MOST_BLOCKS, _MOST_STEPS = 1024, 5000


@style()
def draw(events: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Blocks over steps: a bar from the step a block's content became findable until it was evicted."""
    stays = _stays(events)
    last = max((int(event["step"]) for event in events if "step" in event), default=0)
    highest = max((block for block, *_ in stays), default=0)
    if not stays or highest > _MOST_BLOCKS or last > _MOST_STEPS:
        return None
    figure = new_figure(height_in=min(6.0, 2.0 + highest * 0.03))
    axes = new_axes(figure, grid="")
    evicted = [(block, start, end) for block, start, end in stays if end is not None]
    kept = [(block, start, last + 1) for block, start, end in stays if end is None]
    thick = max(0.6, 180 / max(highest, 1))
    for entries, name, colour in ((kept, "there at the end", COLOURS[0]), (evicted, "evicted later", COLOURS[1])):
        if entries:
            blocks, starts, ends = zip(*entries, strict=True)
            axes.hlines(blocks, starts, ends, color=colour, linewidth=min(thick, 5), label=name)
    if evicted:
        gone = [(end, block) for block, _, end in evicted]
        axes.plot(*zip(*gone, strict=True), "x", color=INK, markersize=3, label="eviction")
    axes.set_xlabel("step")
    axes.set_ylabel("block")
    axes.set_ylim(0, highest + 1)
    legend(axes, 3)
    return figure


def _stays(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, int, int | None]]:
    """(block, step published, step evicted or None), in order."""
    open_since: dict[int, int] = {}
    stays: list[tuple[int, int, int | None]] = []
    for event in events:
        if "block" not in event:
            continue
        block, step = int(event["block"]), int(event["step"])
        if event["event"] == "publish":
            open_since.setdefault(block, step)
        elif event["event"] == "evict" and block in open_since:
            stays.append((block, open_since.pop(block), step))
    return stays + [(block, step, None) for block, step in sorted(open_since.items())]
