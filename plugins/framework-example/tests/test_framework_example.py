"""Each plugin passes the kit of its kind, and does what its first line says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from framework_example.allocator import PackedAllocator
from framework_example.backend import Int8Reader
from framework_example.eviction import CappedHits
from framework_example.hash import Keyed

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.llm import LLM, CacheOptions
from framework.modes.dense_check import measure_loss, summarise_loss
from framework.sampling import Sampling
from framework.types import Namespace, RequestId, RequestInfo, as_tokens
from framework_testing import allocator_checks, eviction_checks, hash_checks
from framework_testing.backend import backend_checks, check_numbers_match_fp64_over_the_grid
from framework_testing.eviction import Cache


@pytest.mark.parametrize("check", eviction_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("cap", [0, 3])
def test_the_policy_passes_its_kit(cap: int, check: Any) -> None:
    check(partial(CappedHits, cap=cap))


@pytest.mark.parametrize("check", allocator_checks, ids=lambda check: check.__name__)
def test_the_allocator_passes_its_kit(check: Any) -> None:
    check(PackedAllocator)


@pytest.mark.parametrize("check", hash_checks, ids=lambda check: check.__name__)
def test_the_hash_passes_its_kit(check: Any) -> None:
    check(Keyed)


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_the_backend_passes_its_kit_with_what_it_declares_to_lose(check: Any) -> None:
    check(Int8Reader, "cpu", "small")


class SaysNothing(Int8Reader):
    """Loses as much and declares nothing."""

    capabilities = replace(Int8Reader.capabilities, lossy=None)


def test_a_loss_that_is_not_declared_fails_the_kit() -> None:
    with pytest.raises(AssertionError, match="max error"):
        check_numbers_match_fp64_over_the_grid(SaysNothing, "cpu", "small")


def test_a_run_reports_what_the_backend_loses(tmp_path: Path) -> None:
    llm = LLM("tiny", backend=Int8Reader(), cache=CacheOptions(num_blocks=64, block_size=4))
    requests = llm.generate([[1, 2, 3, 4, 5], [9, 8, 7]], Sampling(max_tokens=12))
    verdicts = measure_loss(llm, requests, 8)
    found = summarise_loss(verdicts, 0.05)
    assert 0.0 < found["attention_error"] < 0.05, found
    assert (found["loss_exceeded"], found["dense_mismatches"]) == (0, None), found
    assert 0.0 < found["dense_kl_divergence"] < 0.1, found


def _evicted_after(policy: EvictionPolicy, uses: list[int]) -> int:
    """Which prompt's block is evicted first, after prompts of one block each were served in this order."""
    cache = Cache(policy, num_blocks=8)
    first = {}
    for prompt in uses:
        cache.begin((prompt,))
        first[prompt] = cache.holder[prompt,]
        cache.end(0)
    cache.evict()
    return next(prompt for prompt, block in first.items() if block == cache.evictions[0])


def test_what_was_found_least_often_goes_first() -> None:
    assert _evicted_after(CappedHits(cap=3), [1, 1, 1, 2, 3, 3]) == 2


def test_beyond_the_cap_recency_decides() -> None:
    uses = [1, 1, 1, 1, 1, 2, 2, 2]
    assert _evicted_after(CappedHits(cap=2), uses) == 1
    assert _evicted_after(CappedHits(cap=9), uses) == 2


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 0, found -1"):
        CappedHits(cap=-1)


def test_the_lowest_free_blocks_are_handed_out() -> None:
    allocator = PackedAllocator(num_blocks=8, block_size=2, hash=Keyed(), eviction=CappedHits())
    prompts = [as_tokens([number] * 3) for number in range(3)]
    for number, prompt in enumerate(prompts):
        hit = allocator.lookup(prompt, Namespace())
        allocator.allocate(RequestInfo(id=RequestId(number), max_total_tokens=3), prompt, hit)
    allocator.free(RequestId(0))
    again = as_tokens([9] * 5)
    hit = allocator.lookup(again, Namespace())
    allocator.allocate(RequestInfo(id=RequestId(3), max_total_tokens=5), again, hit)
    assert allocator.table(RequestId(3)).tolist() == [1, 2, 7]


def test_another_secret_gives_other_names() -> None:
    names = {Keyed(secret=secret).root(Namespace(), 16) for secret in ("", "a", "b")}
    assert len(names) == 3, names
