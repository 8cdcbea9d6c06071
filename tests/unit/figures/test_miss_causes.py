"""Pictures of misses: causes over requests, and what evictions cost by age."""

from __future__ import annotations

from typing import Any

from framework.figures import miss_causes, regret_by_age
from framework.misses.account import OUTCOMES, key_of


def row(**counts: int) -> dict[str, Any]:
    missed = {key_of(outcome, "tokens"): counts.get(outcome.replace(" ", "_"), 0) for outcome in OUTCOMES[1:]}
    return {"request": 0, "cached_tokens": counts.get("hit", 0), **missed}


def test_the_shares_of_each_bin_fill_it() -> None:
    figure = miss_causes.draw([row(hit=30, new=60, evicted=10), row(new=50, evicted=50)])
    assert figure is not None
    axes = figure.axes[0]
    tops = [patch.get_paths()[0].vertices[:, 1].max() for patch in axes.collections]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["hit", "new", "evicted"]
    assert max(tops) == 100
    assert miss_causes.draw([{"request": 0, "cached_tokens": 3}]) is None


def test_a_bar_is_what_was_computed_again_and_its_lower_part_the_optimum_s() -> None:
    shared = {
        "request": 5,
        "depth": 0,
        "blocks": 1,
        "evicted_for": 2,
        "references_ago": 9,
        "admission": 5,
        "lru_tokens": 0,
    }
    rows = [
        {**shared, "tokens": 512, "requests_ago": 3, "optimum_tokens": 512},
        {**shared, "tokens": 100, "requests_ago": 500, "optimum_tokens": 0},
    ]
    figure = regret_by_age.draw(rows)
    assert figure is not None
    heights = [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers]
    assert heights == [[512, 0, 0, 0, 0, 0], [0, 0, 0, 100, 0, 0]]
    assert regret_by_age.draw([]) is None
