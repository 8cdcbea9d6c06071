"""Every figure draws, in one style, narrow enough for a phone; a new file is found by listing."""

from __future__ import annotations

import importlib
import io
import pkgutil
from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure

from framework_report import figures
from framework_report.figures import curve, intervals, trials
from framework_report.figures.curve import Line
from framework_report.figures.intervals import Row
from framework_report.figures.style import WIDTH_IN, as_svg, save, short
from framework_report.plots import OF_RUNS

KINDS = ("live", "internal", "reserved", "external", "cached_idle", "free")
STEPS = [
    {"step": s, "time_s": 0.1 * s, **{f"{kind}_slots": 10 * (i + s) for i, kind in enumerate(KINDS)}} for s in range(5)
]
EVENTS: list[dict[str, Any]] = [
    {"event": "step", "step": 1, "sequences": [1], "new": [32]},
    {"event": "publish", "step": 1, "block": 1, "key": "aa"},
    {"event": "fork", "step": 2, "request": 0, "sequence": 2, "parent": 1},
    {"event": "step", "step": 2, "sequences": [1, 2], "new": [1, 1]},
    {"event": "evict", "step": 3, "block": 1, "key": "aa"},
]
NAMED = {"x_label": "x", "y_label": "y"}
ROWS = [Row(label="a", value=1.0, interval=(0.9, 1.1), parts=[1, 2]), Row(label="b", value=2.0, baseline=True)]
TIERS = [{**step, "tier1_blocks": 3 * step["step"], "tier2_blocks": 1, "loading": 1} for step in STEPS]
BARS = [(0.5, 1.5), None, (2.5, 3.5)]
LINES = [Line(label=f"policy_{i}", x=[8, 64, 512], y=[1.0 * i, 2.0, 3.0], intervals=BARS) for i in range(9)]
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "memory": ((TIERS,), {}),
    "block_map": ((EVENTS,), {}),
    "fork_tree": ((EVENTS,), {}),
    "curve": (([*LINES, Line(label="optimum", x=[8, 512], y=[4, 4], reference=True)],), NAMED),
    "intervals": ((ROWS,), {"x_label": "x", "zero": True}),
    "trials": (
        ([0.5, None, 0.7], {"a": [(1, 2.0, True)], "b": [("x", 2.0, False)]}), {"maximize": True, "y_label": "y"},
    ),
}  # fmt: skip


def drawn(name: str) -> Figure:
    module: ModuleType = importlib.import_module(f"framework_report.figures.{name}")
    positional, named = ARGUMENTS[name]
    figure = module.draw(*positional, **named)
    assert isinstance(figure, Figure), name
    return figure


def test_every_file_of_the_room_is_a_figure_and_is_drawn_here() -> None:
    assert {module.name for module in pkgutil.iter_modules(figures.__path__)} == {*ARGUMENTS, "style"}


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_a_figure_is_as_wide_as_a_phone_can_show_and_its_text_stays_text(name: str) -> None:
    figure = drawn(name)
    assert figure.get_figwidth() == WIDTH_IN
    smallest = min(text.get_fontsize() for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize")))
    # A phone shows the figure some 360 CSS pixels wide: 10 of these are the least that one reads.
    assert smallest * 4 / 3 * 360 / (96 * WIDTH_IN) >= (6 if name == "fork_tree" else 8), smallest
    svg = as_svg(figure, 'a "title"')
    assert svg.startswith("<svg")
    assert "<text" in svg
    assert "currentColor" in svg
    assert 'aria-label="a &quot;title&quot;"' in svg


@pytest.mark.parametrize("module", OF_RUNS, ids=lambda module: module.TITLE)
def test_a_figure_of_a_run_names_the_file_that_it_draws_from_and_needs_something_in_it(module: Any) -> None:
    assert module.SOURCE in ("metrics.jsonl", "events.jsonl")
    assert module.NOTE.endswith(".")
    assert module.draw([]) is None


def test_what_matplotlib_would_read_as_mathematics_or_hide_is_shown_as_it_is() -> None:
    labels = [r"$\frac{", "_hidden", "a$b$c"]
    figure = curve.draw([Line(label=label, x=[1, 2], y=[1, 2]) for label in labels], x_label="$x", y_label="%")
    svg = as_svg(figure, "t")
    for text in (r"$\frac{", "_hidden", "a$b$c", "$x"):
        assert text in svg, text


def test_equal_data_gives_equal_bytes_and_a_saved_figure_is_on_white() -> None:
    assert as_svg(drawn("curve"), "t") == as_svg(drawn("curve"), "t")
    buffer = io.BytesIO()
    save(drawn("memory"), buffer)
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_numbers_on_an_axis_are_short() -> None:
    assert [short(value) for value in (0.5, 64, 3000, 1.5e6)] == ["0.5", "64", "3k", "1.5M"]


def test_the_first_and_last_row_are_not_cut_by_the_frame() -> None:
    low, high = intervals.draw([Row(label=label, value=1.0) for label in "abc"], x_label="x").axes[0].get_ylim()
    assert (high, low) == (-0.5, 2.5), "the first on top, half a row beyond both"


def test_the_best_so_far_goes_up_or_down_with_the_direction_and_past_failed_trials() -> None:
    for maximize, best in ((True, [2.0, 2.0, 3.0]), (False, [2.0, 2.0, 2.0])):
        axes = trials.draw([2.0, None, 3.0], {}, maximize=maximize, y_label="y").axes[0]
        assert list(axes.lines[0].get_ydata()) == best
