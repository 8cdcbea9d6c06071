"""Greedy tokens of the tiny model over a small pool, with and without tiers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from fake_engines import make_llm
from tier_helpers import over

from framework.errors import ConfigError, StoreFailed
from framework.interfaces.below import THREAD
from framework.llm import LLM
from framework.sampling import Sampling

GREEDY = Sampling(max_tokens=4, ignore_eos=True)
SHORT: dict[str, Any] = {"num_blocks": 16, "block_size": 4}


def prompts() -> list[list[int]]:
    stems = [[(7 * number + 3 * at) % 250 for at in range(30)] for number in range(5)]
    order = [0, 1, 2, 3, 4, 0, 2, 1, 4, 3, 0, 1]
    return [[*stems[which][: 18 + 3 * (at % 4)], at] for at, which in enumerate(order)]


def tokens(llm: LLM) -> list[list[int]]:
    return [completion.tokens for request in llm.generate(prompts(), GREEDY) for completion in request.completions]


def test_tokens_are_the_same_whatever_lies_below(tmp_path: Path) -> None:
    with make_llm("tiny", **SHORT) as llm:
        alone = tokens(llm)
    disk = {"name": "disk", "path": str(tmp_path / "kv")}
    cases: list[tuple[Any, list[dict[str, Any]]]] = [
        ("on_eviction", [{"store": "host", "num_blocks": 64}]),
        ({"name": "on_eviction", "exclusive": False}, [{"store": "host", "num_blocks": 9, "eviction": "s3fifo"}]),
        ("write_through", [{"store": "host", "num_blocks": 8}, {"store": disk, "num_blocks": 64}]),
        ("on_second_hit", [{"store": disk, "num_blocks": 64, "eviction": "sieve"}]),
        ("write_through", [{"store": "null", "num_blocks": 64}]),
    ]
    for rule, tiers in cases:
        with make_llm("tiny", below=over(tiers, rule), **SHORT) as llm:
            found = tokens(llm)
            llm.engine.check()
            facts = llm.stats()
        assert found == alone, (rule, tiers)
        assert facts["tier1_hit_blocks"] + facts.get("tier2_hit_blocks", 0) > 0, (rule, tiers, facts)
        assert facts["tier1_failed_stores"] == 0


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kv_dtype", [None, "bfloat16", "int8"])
def test_blocks_of_every_kind_of_pool_come_back_bit_for_bit(kv_dtype: str | None, layout: str) -> None:
    pool = {**SHORT, "kv_dtype": kv_dtype, "layout": layout}
    with make_llm("tiny", **pool) as llm:
        alone = tokens(llm)
    tiers = [{"store": "host", "num_blocks": 64}]
    with make_llm("tiny", below=over(tiers, "on_eviction"), poison=True, **pool) as llm:
        assert tokens(llm) == alone, "or a block was poisoned before it was read"
        assert llm.stats()["loaded_blocks"] > 0


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"hash": "xxh64"}, ConfigError, "collision-resistant"),
        ({"allocator": "cow"}, ConfigError, "names no blocks"),
        (
            {"tiers": [{"store": "host", "num_blocks": 4, "eviction": "belady"}]},
            ConfigError,
            "only mode=cache_only",
        ),
        ({"tiers": [{"store": "host"}]}, ConfigError, "has no num_blocks"),
        ({"tensor_parallel_size": 2}, ConfigError, "several ranks"),
        ({"tiers": [{"store": {"name": "disk", "path": "/proc/nowhere"}, "num_blocks": 4}]}, StoreFailed, "/proc"),
    ],
)
def test_what_cannot_lie_below_is_refused_at_once(options: dict[str, Any], error: type[Exception], says: str) -> None:
    tiers = options.get("tiers", [{"store": "host", "num_blocks": 4}])
    given = {key: value for key, value in options.items() if key != "tiers"}
    with pytest.raises(error, match=says):
        make_llm("tiny", below=over(tiers, "on_eviction"), **SHORT, **given)


def test_a_reset_opens_the_stores_anew_and_leaves_one_thread_which_closing_ends() -> None:
    before = {*threading.enumerate()}
    with make_llm("tiny", below=over([{"store": "host", "num_blocks": 64}], "on_eviction"), **SHORT) as llm:
        first = tokens(llm)
        llm.reset()
        assert [thread.name for thread in threading.enumerate() if thread not in before] == [THREAD]
        assert llm.stats()["tier1_hit_blocks"] == 0
        assert tokens(llm) == first
    assert not {*threading.enumerate()} - before
