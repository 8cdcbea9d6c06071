"""Counts that an allocator gives of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from framework import registry
from framework.errors import PluginError
from framework.guard.allocator import GuardedAllocator
from framework.sampling import Sampling
from framework.testing.engines import drive, fake_engine


@pytest.mark.parametrize(
    "change",
    [{"free_blocks": 3}, {"used_blocks": -1, "free_blocks": 65}, {"free_blocks": 64.0}, {"external_blocks": "a"}],
)
def test_counts_that_do_not_add_up_are_refused_at_once(change: dict[str, Any]) -> None:
    engine = fake_engine(_with(change))
    with pytest.raises(PluginError, match=r"Odd\.stats: "):
        GuardedAllocator(engine.allocator).stats()


@pytest.mark.parametrize("value", ["many", float("nan"), None, 1.5])
def test_a_result_without_the_counts_says_so_and_is_a_result(value: Any) -> None:
    engine = fake_engine(_with({"evictions": value}))
    request = engine.submit([1, 2, 3], Sampling(max_tokens=2))
    drive(engine)
    assert request.status.value == "finished"
    result = engine.metrics.summary(engine.state)
    assert result["num_evictions"] is None, result
    assert "Odd.stats: must return AllocatorStats of ints" in result["first_failure"], result


def _with(change: dict[str, Any]) -> type:
    base: Any = registry.load("allocator", "prefix_cow")
    return type("Odd", (base,), {"stats": lambda self: replace(base.stats(self), **change)})
