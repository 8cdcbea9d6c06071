"""BestShare keeps every promise of a scheduling plugin."""

from __future__ import annotations

from typing import Any

import pytest
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.sampling import Sampling
from framework_testing import scheduling_checks

from framework_example.scheduling import BestShare


@pytest.mark.parametrize("check", scheduling_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(BestShare)


def test_the_prompt_that_is_cached_goes_first() -> None:
    cached, other = list(range(40)), list(range(100, 140))
    engine = EngineOptions(max_batch_requests=1)
    llm = LLM("tiny", cache=CacheOptions(num_blocks=64, block_size=4), engine=engine, scheduling=BestShare())
    llm.generate([cached], Sampling(max_tokens=2))
    late, early = llm.generate([other, cached], Sampling(max_tokens=2))
    assert late.first_scheduled_s is not None
    assert early.first_scheduled_s is not None
    assert late.first_scheduled_s > early.first_scheduled_s
    assert early.num_cached_tokens == 36
