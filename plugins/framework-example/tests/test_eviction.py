"""CappedHits keeps every promise of an eviction policy, and evicts what it means to."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from framework.errors import InvalidArgument
from framework_testing import eviction_checks
from framework_testing.eviction import Cache

from framework_example.eviction import CappedHits


@pytest.mark.parametrize("check", eviction_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("cap", [0, 3])
def test_it_passes_its_kit(cap: int, check: Any) -> None:
    check(partial(CappedHits, cap=cap))


def evicted_after(policy: CappedHits, uses: list[int]) -> int:
    """Which prompt's block is evicted first, after prompts of one block each were served in this order."""
    cache = Cache(policy, num_blocks=8)
    for prompt in uses:
        cache.begin((prompt,))
        cache.end(0)
    prompt_of = {block: path[0] for path, block in cache.holder.items()}
    cache.evict()
    return prompt_of[cache.evictions[0]]


def test_what_was_found_least_often_goes_first() -> None:
    assert evicted_after(CappedHits(cap=3), [1, 1, 1, 2, 3, 3]) == 2


def test_beyond_the_cap_recency_decides() -> None:
    uses = [1, 1, 1, 1, 1, 2, 2, 2]
    assert evicted_after(CappedHits(cap=2), uses) == 1
    assert evicted_after(CappedHits(cap=9), uses) == 2


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 0, found -1"):
        CappedHits(cap=-1)
