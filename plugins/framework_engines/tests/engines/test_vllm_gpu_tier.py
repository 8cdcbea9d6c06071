"""An eviction policy inside vLLM's own Scheduler, KVCacheManager and BlockPool evicts what it evicts here."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from experiments.fidelity import compare, vllm_side
from experiments.fidelity.streams import Outcome, Talk, grown, of_trace, sampled
from experiments.live.server import policy_config
from experiments.shared import CONVERSATION, MissingTrace, trace_path
from framework import registry
from framework_engines import vllm_connector

pytestmark = pytest.mark.timeout(600)


transfer = partial(policy_config, clock="steps")


def in_vllm(talks: list[Talk], eviction: Any = None, *, num_blocks: int = 200, **limits: Any) -> tuple[Outcome, Any]:
    """Through vLLM's scheduler; without a connector where `eviction` is None."""
    scheduler = vllm_side.scheduler_of(
        num_blocks=num_blocks, transfer=None if eviction is None else transfer(eviction), **limits
    )
    outcome = vllm_side.run(talks, scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks, "blocks leaked"
    return outcome, scheduler


def in_replay(talks: list[Talk], eviction: Any, **limits: Any) -> Outcome:
    limits = {"num_blocks": 200, "max_batch_requests": 1, **limits}
    return compare.in_replay(talks, eviction, vllm_side.hash_scheme(), **limits)


@pytest.fixture(scope="module")
def conversation() -> Iterator[list[Talk]]:
    try:
        yield of_trace(trace_path(CONVERSATION), 1500)
    except MissingTrace as missing:
        pytest.skip(str(missing))


def test_lru_evicts_the_same_hashes_in_the_same_order_as_vllm_without_us(conversation: list[Talk]) -> None:
    limits = {"num_blocks": 2000, "block_size": 512, "max_batch_tokens": 65536}
    stock, _ = in_vllm(conversation, None, **limits)
    ours, scheduler = in_vllm(conversation, "lru", **limits)
    assert scheduler.connector.watch.queue.facts is not None
    assert len(stock.evicted) > 1000, "a stream that evicts little shows little"
    assert ours.evicted == stock.evicted
    assert (ours.hits, ours.steps) == (stock.hits, stock.steps)


@pytest.mark.parametrize("limits", [{"max_batch_requests": 6, "max_batch_tokens": 256}, {"max_batch_requests": 40}])
def test_lru_is_vllms_own_order_under_preemption(limits: dict[str, int]) -> None:
    talks = grown(300)
    stock, _ = in_vllm(talks, None, num_blocks=60, **limits)
    ours, _ = in_vllm(talks, "lru", num_blocks=60, **limits)
    assert stock.num_preemptions > 0
    assert (ours.evicted, ours.hits, ours.steps) == (stock.evicted, stock.hits, stock.steps)


def installed_policies() -> list[str]:
    """All that do not read the future."""
    names = registry.names("eviction")
    return [name for name in names if not registry.load("eviction", name).needs_future]


@pytest.mark.parametrize("eviction", installed_policies())
def test_every_policy_hits_and_evicts_exactly_what_our_replay_says(eviction: str) -> None:
    talks = grown(400)
    ours = in_replay(talks, eviction)
    theirs, scheduler = in_vllm(talks, eviction, max_batch_requests=1)
    assert scheduler.connector.watch.queue.failure is None
    assert len(ours.evicted) > 500
    assert theirs.evicted == ours.evicted
    assert (theirs.hits, theirs.steps) == (ours.hits, ours.steps)


@pytest.mark.parametrize(
    "limits",
    [
        {"num_blocks": 200, "max_batch_requests": 6, "max_batch_tokens": 256},
        {"num_blocks": 60, "max_batch_requests": 40, "max_batch_tokens": 8192},
        {"num_blocks": 120, "max_batch_requests": 40, "max_batch_tokens": 64, "watermark": 0.1},
    ],
    ids=["chunks", "preemption", "watermark"],
)
@pytest.mark.parametrize("eviction", ["lru", "s3fifo", "sieve", "arc", "hazard", "workload_aware", "depth_aware"])
def test_a_batch_is_scheduled_hit_and_evicted_exactly_as_our_replay_says(eviction: str, limits: Any) -> None:
    talks = [*grown(120), *sampled(10, width=4)]
    theirs, scheduler = in_vllm(talks, eviction, **limits)
    ours = in_replay(talks, eviction, **limits)
    assert scheduler.connector.watch.queue.failure is None
    assert theirs.steps == ours.steps
    assert theirs.hits == ours.hits
    assert theirs.evicted == ours.evicted
    assert theirs.num_preemptions == ours.num_preemptions
    assert any(len(step) > 3 for step in ours.steps), "no batch: the test shows nothing"
    if limits["num_blocks"] == 60:
        assert ours.num_preemptions > 0


def test_merged_duplicates_are_why_s3fifo_would_differ() -> None:
    talks = grown(400)
    theirs, _ = in_vllm(talks, "s3fifo", max_batch_requests=1)
    assert in_replay(talks, "s3fifo", duplicates="merge").hits != theirs.hits
    assert in_replay(talks, "s3fifo", duplicates="keep").hits == theirs.hits


def test_another_version_with_the_same_hooks_is_led_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vllm.version.__version__", "0.34.1")
    caplog.set_level("INFO", logger="vllm.framework.export")
    logging.getLogger("vllm.framework.export").addHandler(caplog.handler)
    vllm_side.scheduler_of(num_blocks=100, transfer=transfer("lru"))
    assert "over 100 blocks of 16 tokens; tested with 0.32.0 and 0.33.0, this is 0.34.1" in caplog.text


def test_what_the_workers_get_can_be_pickled() -> None:
    scheduler = vllm_side.scheduler_of(num_blocks=100, transfer=transfer("lru"))
    meta = scheduler.connector.build_connector_meta(SchedulerOutput.make_empty())
    assert type(pickle.loads(pickle.dumps(meta))) is vllm_connector.Nothing
