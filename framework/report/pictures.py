"""What happened inside one run: memory over time, blocks, evictions, forks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framework.figures.style import COLOURS, HATCHES, INK, legend, new_axes, new_figure
from framework.files.jsonl import JsonObject, read_jsonl
from framework.report.curves import Plot
from framework.results.layout import EVENTS, METRICS
from framework.results.records import Run

# Name, colour and hatch, from the bottom of the stack up; free is the page itself.
_LAYERS = (
    ("live_slots", "live", COLOURS[0], HATCHES[0]),
    ("internal_slots", "internal", COLOURS[4], HATCHES[1]),
    ("reserved_slots", "reserved", COLOURS[1], HATCHES[2]),
    ("external_slots", "external", COLOURS[3], HATCHES[4]),
    ("cached_idle_slots", "cached, idle", COLOURS[5], HATCHES[3]),
    ("free_slots", "free", "none", HATCHES[0]),
)
_MOST_POINTS = 1500
_MOST_BLOCKS, _MOST_STEPS, _MOST_SEQUENCES = 1024, 5000, 200
_MOST_EVENTS_BYTES = 50_000_000


def memory_stack(row: Run, title: str) -> Plot | None:
    """Where the pool's slots were, step by step; None without `metrics.jsonl`."""
    records = [r for r in _lines(row.path / METRICS) if r.get("live_slots") is not None]
    if len(records) < 2:
        return None
    records = records[:: -(-len(records) // _MOST_POINTS)]
    axis = "time_s" if all(record.get("time_s") is not None for record in records) else "step"
    figure = new_figure(height_in=3.0)
    axes = new_axes(figure)
    x = np.array([float(record[axis]) for record in records])
    bottom = np.zeros(len(records))
    for key, name, colour, hatch in _LAYERS:
        values = np.array([float(record.get(key) or 0) for record in records])
        if not values.any():
            continue
        edge = INK if hatch or key == "free_slots" else colour
        axes.fill_between(
            x, bottom, bottom + values, step="post", label=name, facecolor=colour, edgecolor=edge, hatch=hatch,
            linewidth=0.4, alpha=0.85,
        )  # fmt: skip
        bottom += values
    axes.set_xlabel("time, s" if axis == "time_s" else "step")
    axes.set_ylabel("slots (tokens)")
    axes.set_ylim(0, max(1.0, float(bottom.max())))
    axes.margins(x=0)
    legend(axes, len(_LAYERS))
    note = "Slots of the pool after each step; the layers sum to the pool."
    return Plot(name=f"memory_{row.name}", title=f"Memory over time: {title}", note=note, figure=figure)


def event_pictures(row: Run, title: str) -> list[Plot]:
    """Block map, evictions and fork tree of a run with `run.events=true`; none where it has no log or a huge one."""
    path = row.path / EVENTS
    if not path.is_file() or path.stat().st_size > _MOST_EVENTS_BYTES:
        return []
    events = _lines(path)
    made = (block_map(events, row, title), eviction_timeline(events, row, title), fork_tree(events, row, title))
    return [plot for plot in made if plot is not None]


def block_map(events: Sequence[JsonObject], row: Run, title: str) -> Plot | None:
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
    note = "A line while a block's content can be found by its hash; blanks are free, or not yet full."
    return Plot(name=f"blocks_{row.name}", title=f"Block map: {title}", note=note, figure=figure)


def eviction_timeline(events: Sequence[JsonObject], row: Run, title: str) -> Plot | None:
    """How many blocks had been published and evicted by each step."""
    counts: dict[str, list[int]] = {"admit": [], "evict": []}
    for event in events:
        if "block" in event and event.get("event") in counts:
            counts[event["event"]].append(int(event["step"]))
    if not counts["evict"]:
        return None
    last = max(int(event["step"]) for event in events if "step" in event)
    figure = new_figure(height_in=2.6)
    axes = new_axes(figure)
    for index, (kind, name) in enumerate((("admit", "published"), ("evict", "evicted"))):
        steps, sums = np.unique(np.array(counts[kind], dtype=np.int64), return_counts=True)
        steps, sums = np.append(steps, last), np.append(sums, 0)
        axes.step(steps, np.cumsum(sums), where="post", label=name, color=COLOURS[index], linestyle=("-", "--")[index])
    axes.set_xlabel("step")
    axes.set_ylabel("blocks, cumulative")
    axes.set_ylim(bottom=0)
    legend(axes, 2)
    note = "The distance between the lines is what is findable."
    return Plot(name=f"evictions_{row.name}", title=f"Evictions: {title}", note=note, figure=figure)


def fork_tree(events: Sequence[JsonObject], row: Run, title: str) -> Plot | None:
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
    note = "Solid: a request's first sequence; dashed: a fork of it, which shares its blocks until it writes."
    return Plot(name=f"forks_{row.name}", title=f"Fork tree: {title}", note=note, figure=figure)


def _stays(events: Sequence[JsonObject]) -> list[tuple[int, int, int | None]]:
    """(block, step published, step evicted or None), in order."""
    open_since: dict[int, int] = {}
    stays: list[tuple[int, int, int | None]] = []
    for event in events:
        if "block" not in event:
            continue
        block, step = int(event["block"]), int(event["step"])
        if event["event"] == "admit":
            open_since.setdefault(block, step)
        elif event["event"] == "evict" and block in open_since:
            stays.append((block, open_since.pop(block), step))
    return stays + [(block, step, None) for block, step in sorted(open_since.items())]


def _families(births: dict[int, tuple[int, int | None]]) -> list[int]:
    """Sequences of requests that forked, each parent before its children."""
    children: dict[int, list[int]] = {}
    for sequence, (_, parent) in births.items():
        if parent is not None:
            children.setdefault(parent, []).append(sequence)
    roots = [sequence for sequence in sorted(children) if births.get(sequence, (0, None))[1] is None]
    order: list[int] = []
    stack = [root for root in reversed(roots) if root in births]
    while stack:
        sequence = stack.pop()
        order.append(sequence)
        stack.extend(sorted(children.get(sequence, ()), reverse=True))
    return order


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path) if path.is_file() else []
