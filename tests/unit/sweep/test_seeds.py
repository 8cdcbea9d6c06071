"""Which jobs of a sweep would repeat another but for a seed they do not use."""

from __future__ import annotations

from typing import Any

import pytest

from framework.sweep.seeds import Repeats, uses_seed


def config(**changes: Any) -> dict[str, Any]:
    plain = {
        "mode": "replay",
        "executor": "cache_only",
        "workload": {"name": "trace"},
        "allocator": {"name": "prefix_cow"},
        "eviction": {"name": "lru"},
        "hash": {"name": "sha256"},
    }
    return plain | changes


@pytest.mark.parametrize(
    ("changes", "uses"),
    [
        ({}, False),
        ({"executor": "none"}, False),
        ({"executor": "roofline"}, False),
        ({"workload": {"name": "recording"}, "executor": "none"}, False),
        ({"eviction": {"name": "random"}}, True),
        ({"mode": "serve"}, True),
        ({"mode": "kernel"}, True),
        ({"workload": {"name": "chat"}}, True),
    ],
)
def test_a_replay_uses_the_seed_where_a_component_s_constructor_takes_it(changes: dict[str, Any], uses: bool) -> None:
    assert uses_seed(config(**changes)) is uses


def test_the_first_of_the_jobs_that_differ_in_an_unused_seed_is_run() -> None:
    repeats = Repeats()
    jobs = [([f"+eviction={name}", "cache.num_blocks=8", f"seed={seed}"], name) for seed in (4, 5, 6) for name in "ab"]
    names = {"a": "lru", "b": "random"}
    found = [repeats.repeats(words, lambda name=name: config(eviction={"name": names[name]})) for words, name in jobs]
    assert found == [False, False, True, False, True, False]
    assert repeats.names == {"eviction=lru": 2}
    assert not repeats.repeats(["eviction=lru", "cache.num_blocks=16", "seed=5"], config)
    assert not repeats.repeats(["eviction=lru"], config), "no seed was asked for"
