"""Every figure draws, in one style, narrow enough for a phone; a new file is found by listing."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from framework import figures
from framework.figures.curve import Line
from framework.figures.differences import Row
from framework.figures.ranking import Dot
from framework.figures.style import WIDTH_IN, as_svg, save, short

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
KERNEL = [
    {
        "time_s": 1e-3, "flop": 1e9, "bytes": 1e8, "tflop_per_s": 1.0, "ceiling_gb_per_s": 50.0, "work": "decode",
        "ceiling_tflop_per_s": 0.2, "device_model": "CPU", "dtype": "float32", "lengths": "ragged", "backend": "torch",
        "date": "2026-11-22T00:00:00",
    }
]  # fmt: skip
REGRETS = [
    {"request": 9, "depth": 0, "blocks": 1, "tokens": 16, "evicted_for": 2, "requests_ago": age, "references_ago": age,
     "admission": 9, "lru_tokens": 0, "optimum_tokens": 16}
    for age in (3, 900)
]  # fmt: skip
NAMED = {"x_label": "x", "y_label": "y"}
DOTS = [Dot(label="a", value=1.0, interval=(0.9, 1.1)), Dot(label="b", value=2.0, baseline=True)]
BARS = [(0.5, 1.5), None, (2.5, 3.5)]
LINES = [Line(label=f"policy_{i}", x=[8, 64, 512], y=[1.0 * i, 2.0, 3.0], intervals=BARS) for i in range(9)]
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "memory": ((STEPS,), {}),
    "block_map": ((EVENTS,), {}),
    "evictions": ((EVENTS,), {}),
    "fork_tree": ((EVENTS,), {}),
    "roofline": ((KERNEL,), {}),
    "curve": (([*LINES, Line(label="optimum", x=[8, 512], y=[4, 4], reference=True)],), NAMED),
    "tradeoff": ((LINES,), NAMED),
    "ranking": ((DOTS,), {"x_label": "x"}),
    "differences": (([Row(label="a", pooled=1.0, interval=(0.5, 1.5), settings=[1, 2])],), {"x_label": "x"}),
    "reuse_distance": ((np.array([1.0, 2, 4]), np.array([3, 1]), 10), {}),
    "token_origins": (([{"prompt_tokens": 9, "cached_tokens": 5, "tier1_tokens": 2, "tier2_tokens": 1}],), {}),
    "tiers_over_time": (([{"time_s": s, "tier1_blocks": 3 * s, "tier2_blocks": s, "loading": 1} for s in (0, 1)],), {}),
    "miss_causes": (([{"cached_tokens": 5, "missed_new_tokens": 4, "missed_evicted_tokens": 1}] * 3,), {}),
    "regret_by_age": ((REGRETS,), {}),
    "search_history": (([(1, 0.5), (2, None), (3, 0.7)], [(1, 0.5), (3, 0.7)]), {"y_label": "y"}),
    "search_settings": (({"a": [(1, 2.0, True)], "b": [("x", 2.0, False)]},), {"y_label": "y"}),
}  # fmt: skip


def drawn(name: str) -> Figure:
    module: ModuleType = figures.load(name)
    positional, named = ARGUMENTS[name]
    figure = module.draw(*positional, **named)
    assert isinstance(figure, Figure), name
    return figure


def test_every_file_of_the_room_is_a_figure_and_is_drawn_here() -> None:
    assert figures.names() == sorted(ARGUMENTS)


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


def test_the_figures_of_a_run_name_the_file_that_they_draw_from() -> None:
    found = list(figures.of_runs())
    assert [name for name, _ in found] == [
        "memory", "block_map", "evictions", "fork_tree", "tiers_over_time", "token_origins", "miss_causes",
        "regret_by_age",
    ]  # fmt: skip
    for name, module in found:
        assert module.SOURCE in ("metrics.jsonl", "events.jsonl", "requests.jsonl", "regret.jsonl"), name
        assert module.TITLE, name
        assert module.NOTE.endswith("."), name
        assert module.draw([]) is None, name


def test_what_matplotlib_would_read_as_mathematics_or_hide_is_shown_as_it_is() -> None:
    labels = [r"$\frac{", "_hidden", "a$b$c"]
    figure = figures.load("curve").draw(
        [Line(label=label, x=[1, 2], y=[1, 2]) for label in labels], x_label="$x", y_label="%"
    )
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


def test_the_first_and_last_row_of_differences_are_not_cut_by_the_frame() -> None:
    rows = [Row(label=label, pooled=1.0, interval=None, settings=[1.0]) for label in "abc"]
    low, high = figures.load("differences").draw(rows, x_label="x").axes[0].get_ylim()
    assert (high, low) == (-0.5, 2.5), "the first on top, half a row beyond both"
