"""A tier below the pool stores, evicts and promotes what vLLM's own CPU offloading manager does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from recorded_tiers import Moves, RecordedTiers, conversation_paths
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from framework.interfaces.tiering import Tiering
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
