"""vLLM's own CPU offloading manager and our replay: tiers do the same, and so do our policies inside it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from typing import Any

import pytest
from engine_stand_ins import StandIn
from recorded_tiers import Moves, RecordedTiers, conversation_paths
from replay_helpers import workload
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies import base as vllm_base

from framework.errors import Unsupported
from framework.registry.components import build_component
from framework_cache_only.paths import RequestPaths
from framework_cache_only.reference import replay
from framework_engines import as_vllm
from framework_tiers.tiering import Tiering

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def conversation() -> RequestPaths:
    return conversation_paths(3000)


def ours(paths: RequestPaths, rule: Tiering, pool: int, host: int, eviction: str) -> RecordedTiers:
    policy = build_component("eviction", eviction, {"num_blocks": host, "block_size": 512, "seed": 0})
    below = RecordedTiers(paths, [(host, policy)], rule)
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


FLAT = ["lru", "fifo", "mru", "lfu", "clock", "sieve", "s3fifo", "slru", "2q", "arc", "gdsf", "leaf_lru"]
"""Not w_tinylfu: it counts in a sketch of the blocks' keys, which are vLLM's there and the replay's here."""


@pytest.mark.parametrize("policy", FLAT)
def test_our_policy_in_vllms_cpu_tier_evicts_what_it_evicts_in_our_replay(policy: str) -> None:
    draw = random.Random(3)
    paths = workload([(int(draw.paretovariate(0.7)) % 40,) for _ in range(1500)], block_tokens=512)
    here = build_component("eviction", policy, {"num_blocks": 12, "block_size": 512, "seed": 0})
    gone: list[list[int]] = [[] for _ in range(paths.num_requests)]
    found = replay(paths, here, 12, on_evict=lambda request, node: gone[request].append(node))
    manager = CPUOffloadingManager(12, f"kvlab_{policy}", "framework_engines.vllm")
    theirs = vllms([Moves(path, 0) for path in paths.walk()], manager)
    assert [len(moves.promoted) for moves in theirs] == found.request_hits.tolist()
    assert [moves.evicted for moves in theirs] == gone
    assert sum(map(len, gone)) > 100, "a stream that evicts little shows little"


def test_our_lru_evicts_what_vllms_own_lru_evicts_in_its_cpu_tier() -> None:
    draw = random.Random(3)
    groups = [int(draw.paretovariate(0.7)) % 40 for _ in range(2000)]
    chains = [Moves([100 * group + depth for depth in range(1 + group % 3)], 0) for group in groups]
    own = vllms(chains, CPUOffloadingManager(12, "lru"))
    assert sum(len(moves.evicted) for moves in own) > 100
    assert own == vllms(chains, CPUOffloadingManager(12, "kvlab_lru", "framework_engines.vllm"))


def test_the_signatures_are_those_our_class_was_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = vllm_base.CachePolicy
    for name in [name for name in vars(StandIn) if not name.startswith("_")]:
        asked = list(inspect.signature(getattr(real, name)).parameters)
        assert asked == list(inspect.signature(getattr(StandIn, name)).parameters), (name, asked)
    later = {name for name in vars(real) if not name.startswith("_")} - set(vars(StandIn))
    assert not later, f"vLLM's CachePolicy has gained {later}"
    made = as_vllm("lru")(4)
    assert isinstance(made, real)
    assert made.evict(0, set()) == []
    monkeypatch.delattr(vllm_base, "CachePolicy")
    with pytest.raises(Unsupported, match="CachePolicy cannot be imported"):
        as_vllm("lru")
