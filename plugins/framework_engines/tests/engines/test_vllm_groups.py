"""vLLM's own coordinator over several groups of KV does what the replay over groups does, led by a policy or not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from experiments.fidelity import vllm_side
from experiments.hybrid.equal import (
    IN_FLIGHT,
    LAYOUTS,
    SETTINGS,
    branching_talks,
    differences,
    in_flight,
)
from experiments.live.server import policy_config
from framework import registry
from framework.errors import Unsupported
from framework_engines.vllm_connector import lead
from framework_hybrid.named import Coupled

pytestmark = pytest.mark.timeout(600)

NOT_EQUAL = {
    "lease": "ends ties by the numbers of blocks, which the replay gives out in an order of its own",
    "w_tinylfu": "counts names in a sketch, where those of the replay collide with others",
}
LED = [name for name in registry.names("eviction") if not registry.load("eviction", name).needs_future]
MIXED = {"num_blocks": 100, "retention": 64, "chunk_tokens": 96}


transfer = partial(policy_config, clock="steps")


def same(found: dict[str, Any]) -> None:
    assert found["hit_tokens"] > 2_000, found
    assert found["evictions"] > 100, found
    assert not any(count for key, count in found.items() if "differ" in key), found


@pytest.mark.parametrize(("layout", "settings"), SETTINGS, ids=lambda value: str(value).replace(" ", ""))
def test_hits_evictions_blocks_and_junctions_are_vllm_s(layout: str, settings: dict[str, Any]) -> None:
    same(differences(layout, num_requests=120, **settings))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("retention", [None, 0], ids=["dense", "retention_0"])
@pytest.mark.parametrize("limits", IN_FLIGHT, ids=lambda limits: str(limits["num_blocks"]))
def test_the_full_replay_takes_the_same_steps_with_requests_in_flight_together(
    layout: str, retention: int | None, limits: dict[str, int]
) -> None:
    if layout == "full, chunk" and retention is not None:
        pytest.skip("vLLM refuses a retention without windows or states")
    found = in_flight(layout, retention=retention, **limits)
    same(found)
    assert found["num_steps"] > 500, found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("connected", [False, True], ids=["without_connector", "with_connector"])
def test_lru_is_vllm_s_own_order_with_requests_in_flight_together(layout: str, connected: bool) -> None:
    """Against vLLM alone; with a connector, which makes vLLM free in another order, against one that leads nothing."""
    talks, groups = branching_talks(200, 5), LAYOUTS[layout]

    def scheduler_of(eviction: str | None) -> Any:
        return vllm_side.scheduler_of(
            num_blocks=160, block_size=16, groups=groups, max_batch_requests=6, max_batch_tokens=256,
            retention=None if "chunk" in layout else 0, transfer=transfer(eviction) if connected else None,
        )  # fmt: skip

    stock, scheduler = vllm_side.run(talks, scheduler_of(None)), scheduler_of("lru")
    watch = scheduler.connector.watch if connected else lead(scheduler.kv_cache_manager, "lru")
    ours = vllm_side.run(talks, scheduler)
    facts = watch.queue.facts
    assert watch.queue.failure is None
    assert len(stock.evicted) > 500, "a stream that evicts little shows little"
    assert any(len(step) > 3 for step in stock.steps), "no batch: the test shows nothing"
    assert (ours.evicted, ours.hits, ours.steps) == (stock.evicted, stock.hits, stock.steps)
    assert facts.num_candidates == sum(facts.candidate) > 0
    blocks = scheduler.kv_cache_manager.block_pool.blocks
    assert [name is not None for name in facts.names] == [block.block_hash is not None for block in blocks]


@pytest.mark.parametrize("eviction", [*LED, Coupled], ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_the_replay_over_groups_says_what_a_policy_hits_and_evicts_in_vllm(eviction: Any) -> None:
    found = differences("full, window, state", num_requests=120, eviction=eviction, **MIXED)
    assert found["evictions"] > 100, found
    if eviction not in NOT_EQUAL:
        assert not any(count for key, count in found.items() if "differ" in key), found


def test_an_explanation_of_several_groups_is_refused() -> None:
    groups = LAYOUTS["full, window"]
    with pytest.raises(Unsupported, match="2 KV cache groups; leave it out"):
        vllm_side.scheduler_of(num_blocks=50, groups=groups, transfer=transfer("lru", explain="somewhere"))
