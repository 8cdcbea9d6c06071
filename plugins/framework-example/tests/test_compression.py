"""LargeValues keeps every promise of a compression, and the pool gets its blocks back."""

from __future__ import annotations

from typing import Any

import pytest
from framework.llm import LLM, CacheOptions
from framework.sampling import Sampling
from framework_testing import compression_checks

from framework_example.compression import LargeValues


@pytest.mark.parametrize("check", compression_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(LargeValues)


def test_three_of_four_blocks_come_back() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=64, block_size=4), compression=LargeValues(ratio=0.75))
    llm.generate([list(range(80))], Sampling(max_tokens=8, ignore_eos=True))
    stats = llm.stats()
    assert (stats["dropped_tokens"], stats["returned_blocks"]) == (60, 15)
