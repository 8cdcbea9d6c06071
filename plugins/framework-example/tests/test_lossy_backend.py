"""Int8Reader keeps every promise of an attention backend with what it declares to lose, and none without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from framework.llm import LLM, CacheOptions
from framework.modes.dense_check import measure_loss, summarise_loss
from framework.sampling import Sampling
from framework_testing.backend import backend_checks, check_numbers_match_fp64_over_the_grid

from framework_example.lossy_backend import Int8Reader


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(Int8Reader, "cpu", "small")


class SaysNothing(Int8Reader):
    """Loses as much and declares nothing."""

    capabilities = replace(Int8Reader.capabilities, lossy=None)


def test_a_loss_that_is_not_declared_fails_the_kit() -> None:
    with pytest.raises(AssertionError, match="max error"):
        check_numbers_match_fp64_over_the_grid(SaysNothing, "cpu", "small")


def test_a_run_reports_what_the_backend_loses() -> None:
    llm = LLM("tiny", backend=Int8Reader(), cache=CacheOptions(num_blocks=64, block_size=4))
    requests = llm.generate([[1, 2, 3, 4, 5], [9, 8, 7]], Sampling(max_tokens=12))
    found = summarise_loss(measure_loss(llm, requests, 8), 0.05)
    assert 0.0 < found["attention_error"] < 0.05, found
    assert (found["loss_exceeded"], found["dense_mismatches"]) == (0, None), found
    assert 0.0 < found["dense_kl_divergence"] < 0.1, found
