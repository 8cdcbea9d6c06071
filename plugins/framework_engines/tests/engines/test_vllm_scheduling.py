"""OrderedScheduler in vLLM's own scheduler: each installed order does there what it does in the replay."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

import pytest

from experiments.fidelity import vllm_side
from experiments.fidelity.compare import differences, in_replay, in_vllm
from experiments.fidelity.streams import Outcome, grown

ORDERS = sorted({point.name for point in entry_points(group="framework.scheduling")})
POOLS = {"roomy": 400, "crowded": 60}


def limits(pool: str, **more: Any) -> dict[str, Any]:
    return {"num_blocks": POOLS[pool], "max_batch_requests": 6, "max_batch_tokens": 256, "waiting": 24, **more}


@cache
def stock(pool: str) -> Outcome:
    """vLLM's own scheduler."""
    return in_vllm(grown(80), None, **limits(pool))


def assert_equal(theirs: Outcome, ours: Outcome) -> None:
    found = differences(theirs, ours)
    assert not any(count for key, count in found.items() if "differ" in key), found


@pytest.mark.parametrize("pool", POOLS)
def test_fcfs_is_vllms_own_order(pool: str) -> None:
    assert_equal(stock(pool), in_vllm(grown(80), None, scheduling="fcfs", **limits(pool)))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_hits_evicts_preempts_and_steps_as_in_the_replay(order: str, pool: str) -> None:
    theirs = in_vllm(grown(80), None, scheduling=order, **limits(pool))
    assert_equal(theirs, in_replay(grown(80), "lru", vllm_side.hash_scheme(), scheduling=order, **limits(pool)))
    if order in ("longest_prefix", "dfs_weight", "windowed_lookahead", "ewsjf", "shortest_job"):
        assert theirs.steps != stock(pool).steps, "it orders nothing: the test shows nothing"


@pytest.mark.parametrize(
    ("order", "bound"), [("longest_prefix", {"max_passed": 2}), ("shortest_job", {"max_wait_s": 5})]
)
def test_a_bound_is_kept_as_in_the_replay(order: str, bound: dict[str, Any]) -> None:
    more = limits("crowded", scheduling={"name": order, **bound})
    theirs = in_vllm(grown(80), None, **more)
    assert_equal(theirs, in_replay(grown(80), "lru", vllm_side.hash_scheme(), **more))
    free = limits("crowded", scheduling={"name": order, **dict.fromkeys(bound)})
    assert theirs.steps != in_vllm(grown(80), None, **free).steps, "the bound was never reached: the test shows nothing"


@pytest.mark.parametrize("eviction", ["lru", "s3fifo"])
def test_an_order_and_a_policy_go_together(eviction: str) -> None:
    more = limits("crowded", scheduling="longest_prefix")
    assert_equal(in_vllm(grown(80), eviction, **more),
                 in_replay(grown(80), eviction, vllm_side.hash_scheme(), **more))  # fmt: skip


def test_looking_up_what_is_cached_counts_nothing() -> None:
    limit = limits("crowded", scheduling="longest_prefix")
    waiting, counted = limit.pop("waiting"), list[int]()
    scheduler = vllm_side.scheduler_of(**limit)
    scheduler.kv_cache_manager.record_prefix_cache_stats = lambda request, num_hits: counted.append(num_hits)
    outcome = vllm_side.run(grown(80), scheduler, waiting=waiting)
    assert (sum(counted), len(counted)) == (sum(outcome.hits.values()), 80)
