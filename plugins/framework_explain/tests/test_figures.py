"""Pictures of where prompt tokens came from and of what evictions cost."""

from __future__ import annotations

import pytest

from framework_explain import regret_by_age, token_origins

REGRETS = [
    {"request": 9, "depth": 0, "blocks": 1, "tokens": 16, "evicted_for": 2, "requests_ago": age, "references_ago": age,
     "admission": 9, "lru_tokens": 0, "optimum_tokens": 16}
    for age in (3, 900)
]  # fmt: skip
TIERS = {"prompt_tokens": 9, "cached_tokens": 5, "tier1_tokens": 2, "tier2_tokens": 1}


def origins(*rows: dict[str, int]) -> dict[str, float]:
    """Legend of the picture of where tokens came from: name -> share in percent."""
    figure = token_origins.draw(rows)
    assert figure is not None
    texts = [text.get_text().removesuffix(" %").rpartition(", ") for text in figure.legends[0].get_texts()]
    assert max(patch.get_paths()[0].vertices[:, 1].max() for patch in figure.axes[0].collections) == pytest.approx(100)
    return {name: float(share) for name, _, share in texts}


def test_where_tokens_came_from_is_split_by_tier_and_by_cause_as_far_as_the_run_says() -> None:
    tiers = {"prompt_tokens": 10, "cached_tokens": 6, "tier1_tokens": 2, "tier2_tokens": 1}
    assert origins(tiers, tiers) == {"hit in the pool": 30, "hit in tier 1": 20, "hit in tier 2": 10, "computed": 40}
    blocks = {"prompt_blocks": 4, "hit_blocks": 3, "tier1_blocks": 1}
    assert origins(blocks) == {"hit in the pool": 50, "hit in tier 1": 25, "computed": 25}
    new = {"cached_tokens": 30, "missed_new_tokens": 60, "missed_evicted_tokens": 10}
    assert origins(new, {**new, "cached_tokens": 0}) == pytest.approx({"hit": 17.6, "new": 70.6, "evicted": 11.8})
    assert token_origins.draw([{"request": 0, "prompt_tokens": 5, "cached_tokens": 3}]) is None


def test_a_bar_is_what_was_computed_again_and_its_lower_part_the_optimum_s() -> None:
    rows = [{**REGRETS[0], "tokens": 512, "optimum_tokens": 512}, {**REGRETS[1], "tokens": 100, "optimum_tokens": 0}]
    figure = regret_by_age.draw(rows)
    assert figure is not None
    heights = [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers]
    assert heights == [[512, 0, 0, 0, 0, 0], [0, 0, 0, 100, 0, 0]]
