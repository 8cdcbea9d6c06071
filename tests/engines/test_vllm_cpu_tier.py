"""A tier below the pool stores, evicts and promotes what vLLM's own CPU offloading manager does."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest
from recorded_tiers import Moves, RecordedTiers, conversation_paths
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from framework.errors import Unsupported
from framework.export import vllm_tiering
from framework.interfaces.tiering import Event, TierBlock, Tiering
from framework.registry.components import build_component
from framework.replay.paths import RequestPaths
from framework.replay.reference import replay
from framework.replay.tiers import TierSpec

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def conversation() -> RequestPaths:
    return conversation_paths(3000)


def ours(paths: RequestPaths, rule: Tiering, pool: int, host: int, eviction: str) -> RecordedTiers:
    policy = build_component("eviction", eviction, {"num_blocks": host, "block_size": 512, "seed": 0})
    below = RecordedTiers(paths, [TierSpec(host, policy)], rule)
    replay(paths, build_component("eviction", "lru", {}), pool, below=below)
    return below


def vllms(requests: Sequence[Moves], manager: CPUOffloadingManager) -> list[Moves]:
    """vLLM's manager asked as its scheduler asks: look up what follows the pool's hit, load it, offer all blocks."""
    result = []
    for number, request in enumerate(requests):
        path, in_pool = request.path, request.in_pool
        context = ReqContext(req_id=str(number))
        keys = [make_offload_key(node.to_bytes(8, "little"), 0) for node in path]
        for at, key in enumerate(keys):
            context.set_offload_key_position(key, 512 * (at + 1))
        manager.on_new_request(context)
        node_of = dict(zip(keys, path, strict=True))
        found = []
        for key in keys[in_pool:]:
            if manager.lookup(key, context) is not LookupResult.HIT:
                break
            found.append(key)
        if found:
            manager.prepare_load(found, context)
            manager.complete_load(found, context)
        stored = manager.prepare_store(keys, context)
        assert stored is not None, "no room"
        manager.complete_store(stored.keys_to_store, context)
        manager.on_request_finished(context)
        result.append(
            Moves(
                path,
                in_pool,
                [node_of[key] for key in found],
                [int.from_bytes(key[:8], "little") for key in stored.evicted_keys],
                [node_of[key] for key in stored.keys_to_store],
            )
        )
    return result


@pytest.mark.parametrize(
    ("rule", "threshold"),
    [("write_through", 0), ({"name": "on_second_hit", "uses": 2}, 2), ({"name": "on_second_hit", "uses": 3}, 3)],
    ids=["write_through", "second", "third"],
)
@pytest.mark.parametrize("sizes", [(300, 900), (1_000, 2_000), (2_000, 1_500)])
def test_the_same_blocks_are_stored_evicted_and_promoted_in_the_same_order(
    conversation: RequestPaths, sizes: tuple[int, int], rule: Any, threshold: int
) -> None:
    pool, host = sizes
    mine = ours(conversation, build_component("tiering", rule, {}), pool, host, "lru")
    manager = CPUOffloadingManager(num_chunks=host, store_threshold=threshold, max_tracker_size=10**9)
    theirs = vllms(mine.requests, manager)
    for number, (found, expected) in enumerate(zip(mine.requests, theirs, strict=True)):
        assert found == expected, f"request {number}"
    assert sum(len(moves.promoted) for moves in theirs) > 0 or sizes[1] < sizes[0]
    assert sum(len(moves.evicted) for moves in theirs) > 1000


class Shallow(Tiering):
    """What lies near the root, once it was used again."""

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event != "evicted" and block.depth < 6 and block.uses >= 2


@pytest.mark.parametrize("rule", ["write_through", "on_second_hit", Shallow])
@pytest.mark.parametrize("eviction", ["lru"])
def test_a_rule_by_module_path_stores_in_vllm_what_it_stores_here(
    conversation: RequestPaths, rule: Any, eviction: str
) -> None:
    mine = ours(conversation, build_component("tiering", rule, {}), 500, 1_500, eviction)
    manager = vllm_tiering.with_rule(CPUOffloadingManager(num_chunks=1_500), rule)
    theirs = vllms(mine.requests, manager)
    for number, (found, expected) in enumerate(zip(mine.requests, theirs, strict=True)):
        assert found == expected, f"request {number}"


def test_vllm_finds_the_spec_of_a_rule_by_its_name() -> None:
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    extra = {"spec_name": "kvlab_on_second_hit", "spec_module_path": "framework.export.vllm_tiering"}
    found = OffloadingSpecFactory.get_spec_cls(extra)
    assert issubclass(found, CPUOffloadingSpec)
    spec = object.__new__(found)
    spec._manager, spec.extra_config, spec.num_chunks = None, {}, 4
    spec.eviction_policy, spec.cache_policy_module_path, spec.cpu_info = "lru", None, None
    spec.kv_events_config = types.SimpleNamespace(enable_kv_cache_events=False)
    manager = spec.get_manager()
    assert spec.get_manager() is manager
    context = ReqContext(req_id="one")
    key = make_offload_key(b"a content", 0)
    assert [list(manager.prepare_store([key], context).keys_to_store) for _ in range(2)] == [[], [key]]


def test_a_rule_that_waits_for_evictions_is_refused() -> None:
    with pytest.raises(Unsupported, match="nothing but what is evicted"):
        vllm_tiering.as_vllm_spec("on_eviction")
