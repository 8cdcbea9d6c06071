"""Greedy tokens of a tiny model over a small pool, with and without tiers, and of one that fails or is let go of."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_engines import make_llm
from static_backend import NanOnce
from tier_helpers import over

from framework.engine.request import Status
from framework.errors import ConfigError, StoreFailed
from framework.interfaces.below import THREAD
from framework.llm import LLM, EngineOptions
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

GREEDY = Sampling(max_tokens=4, ignore_eos=True)
SHORT: dict[str, Any] = {"num_blocks": 16, "block_size": 4}


def prompts() -> list[list[int]]:
    stems = [[(7 * number + 3 * at) % 250 for at in range(30)] for number in range(5)]
    order = [0, 1, 2, 3, 4, 0, 2, 1, 4, 3, 0, 1]
    return [[*stems[which][: 18 + 3 * (at % 4)], at] for at, which in enumerate(order)]


def tokens(llm: LLM) -> list[list[int]]:
    return [completion.tokens for request in llm.generate(prompts(), GREEDY) for completion in request.completions]


CASES: list[tuple[dict[str, Any], Any, list[dict[str, Any]]]] = [
    ({}, {"name": "on_eviction", "exclusive": False}, [{"store": "host", "num_blocks": 9, "eviction": "s3fifo"}]),
    ({"kv_dtype": "int8"}, "write_through", [{"store": "host", "num_blocks": 8}, {"store": "disk", "num_blocks": 64}]),
    ({"kv_dtype": "bfloat16", "layout": "HND"}, "on_eviction", [{"store": "host", "num_blocks": 64}]),
    ({"layout": "HND"}, "on_second_hit", [{"store": "disk", "num_blocks": 64, "eviction": "sieve"}]),
    ({}, "write_through", [{"store": "null", "num_blocks": 64}]),
]


@pytest.mark.parametrize(("pool", "rule", "tiers"), CASES)
def test_tokens_are_the_same_whatever_lies_below(
    pool: dict[str, Any], rule: Any, tiers: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Over every kind of pool, whose blocks come back bit for bit, or one was poisoned before it was read."""
    disk = {"name": "disk", "path": str(tmp_path / "kv")}
    placed = [{**tier, "store": disk if tier["store"] == "disk" else tier["store"]} for tier in tiers]
    with make_llm("tiny", **SHORT, **pool) as llm:
        alone = tokens(llm)
    with make_llm("tiny", below=over(placed, rule), poison=True, **SHORT, **pool) as llm:
        assert tokens(llm) == alone
        llm.engine.check()
        facts = llm.stats()
    assert facts["tier1_hit_blocks"] + facts.get("tier2_hit_blocks", 0) > 0, facts
    assert facts["tier1_failed_stores"] == 0
    assert (facts["loaded_blocks"] > 0) == (tiers[0]["store"] != "null")


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


PROMPT = [5, 9, 13, 40, 22, 31, 8, 17, 60, 33, 2, 71]


def test_what_a_failed_request_wrote_leaves_the_tiers_and_the_next_process_finds_none(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", hidden_size=32, num_hidden_layers=2, vocab_size=96)
    options = EngineOptions(max_model_len=64, chunk_size=8)
    tiers = [
        {"store": "host", "num_blocks": 40},
        {"store": {"name": "disk", "path": str(tmp_path / "kv")}, "num_blocks": 40},
    ]
    parts: dict[str, Any] = {
        "dtype": "float32", "num_blocks": 80, "block_size": 4, "device": "cpu", "engine": options,
        "below": over(tiers, {"name": "write_through"}),
    }  # fmt: skip
    sampling = Sampling(max_tokens=4)
    with make_llm(str(checkpoint), backend=NanOnce(), **parts) as llm:
        (failed,) = llm.generate(PROMPT, sampling)
        assert failed.status is Status.FAILED, failed
    assert not list(tmp_path.rglob("*.kv")), "the next process would load it"
    with make_llm(str(checkpoint), **parts) as llm:
        (again,) = llm.generate(PROMPT, sampling)
        assert again.status is Status.FINISHED, again.reason
    assert list(tmp_path.rglob("*.kv")), "nothing was stored"


def test_an_llm_that_nobody_holds_ends_its_thread() -> None:
    others = set(threading.enumerate())
    llm = make_llm("tiny", num_blocks=16, below=over([{"store": "host", "num_blocks": 8}], "write_through"))
    (own,) = {thread for thread in threading.enumerate() if thread.name == THREAD} - others
    del llm
    gc.collect()
    own.join(60)
    assert not own.is_alive()
