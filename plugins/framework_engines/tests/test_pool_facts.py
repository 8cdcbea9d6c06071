"""Blocks of several groups of KV in another engine's pool, as a policy sees them; tests/engines has them in vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import Unsupported
from framework.groups.pool import GroupView
from framework.interfaces.eviction import BlockView
from framework.interfaces.groups import KVGroup
from framework.types import RequestId, RequestInfo
from framework_builtin.eviction.lru import Lru
from framework_engines.pool_facts import GroupFacts
from framework_engines.vllm_connector import kv_groups

GROUPS = (
    KVGroup(name="full", kind="full", block_tokens=8, block_bytes=64),
    KVGroup(name="window", kind="window", block_tokens=4, block_bytes=64, length=6),
)


class Looks(Lru):
    needs_groups = needs_requests = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        assert isinstance(blocks, GroupView)
        self.view = blocks


def chain_of(letter: bytes, units: int) -> list[bytes]:
    return [bytes(24) + letter * 4 + unit.to_bytes(4, "big") for unit in range(1, units + 1)]


def named(prefix: bytes, group: int) -> bytes:
    return prefix + group.to_bytes(4, "big")


def opened(num_blocks: int = 20) -> tuple[GroupFacts, Any]:
    policy = Looks()
    return GroupFacts(policy, GROUPS, num_blocks, 4, lambda: 0.0), policy


def publish(facts: GroupFacts, chain: list[bytes], full: list[int], window: dict[int, int], **more: Any) -> None:
    facts.admit(full, [*range(len(full))], [0] * len(full), [named(chain[2 * at + 1], 0) for at in range(len(full))],
                chain=chain, **more)  # fmt: skip
    facts.admit([*window.values()], [*window], [0] * len(window), [named(chain[at], 1) for at in window],
                chain=chain, **more)  # fmt: skip


def test_a_policy_reads_the_columns_of_groups() -> None:
    facts, policy = opened()
    publish(facts, chain_of(b"a", 4), [1, 2], {0: 3, 2: 4, 3: 5}, priority=2, tenant=1)
    facts.release([2, 1])
    facts.release([5, 4, 3])
    view = policy.view
    assert [view.group[block] for block in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 1]
    assert [view.end[block] for block in (1, 2, 3, 4, 5)] == [8, 16, 4, 12, 16]
    assert [view.partners[block] for block in (1, 2, 3, 4, 5)] == [0, 1, 0, 0, 1]
    assert [view.parent[block] for block in (1, 2, 3, 4, 5)] == [0, 1, 0, 0, 4]
    assert [view.above[block] for block in (1, 2, 3, 4, 5)] == [0, 1, 0, 3, 4]
    assert [view.resume[block] for block in (1, 2, 5)] == [False, True, True]
    assert view.replay_cost[2] == 16, "without it nothing can be resumed"
    assert (view.priority[2], view.tenant[2], view.num_bytes[2]) == (2, 1, 64)
    assert facts.num_candidates == sum(facts.candidate) == 5
    assert facts.victims(2) == [2, 1]
    assert view.partners[5] == 0
    assert [name is not None for name in facts.names[1:6]] == [False, False, True, True, True]


def test_a_block_in_use_is_no_candidate_and_one_that_is_dropped_is_gone() -> None:
    facts, policy = opened()
    chain = chain_of(b"a", 4)
    publish(facts, chain, [1, 2], {3: 5})
    facts.release([2, 1])
    assert facts.hit([1, 2], priority=3) == 4, "units that the blocks found reach"
    assert (facts.num_candidates, policy.view.hits[1], policy.view.priority[1]) == (0, 1, 3)
    facts.drop(1)
    facts.drop(5)
    assert facts.num_candidates == 0
    facts.release([2])
    assert (facts.num_candidates, facts.victims(1)) == (1, [2])
    publish(facts, chain, [1, 2], {})
    facts.release([2, 1])
    facts.drop_all()
    assert not any(facts.names)
    assert facts.num_candidates == 0


def test_a_request_has_used_what_it_found_though_a_window_leaves_it_early() -> None:
    facts, policy = opened()
    publish(facts, chain_of(b"a", 4), [1, 2], {2: 4, 3: 5})
    facts.release([5, 4])
    facts.hit([4, 5])
    info = RequestInfo(id=RequestId(0), max_total_tokens=20, prompt_tokens=20)
    request = facts.request_of(info, 20, chain_of(b"a", 5), 4)
    facts.release([4])
    assert policy.view.last_request[4] == request
    assert policy.view.last_request[2] != request, "not found"


def test_prefixes_are_forgotten_but_those_above_resident_contents() -> None:
    facts, policy = opened(num_blocks=2)
    for number in range(40):
        chain = chain_of(bytes([number]), 4)
        facts.admit([1], [1], [0], [named(chain[3], 0)], chain=chain)
        facts.release([1])
        if number < 39:
            facts.victims(1)
    assert len(facts._parents) <= 16 * 2 + 4
    facts._forget_prefixes()
    assert len(facts._parents) == 4
    assert not policy.view.resume[1], "the block above is gone"
    facts.admit([2], [0], [0], [named(chain[1], 0)], chain=chain)
    assert policy.view.above[1] == 2


def test_a_content_published_out_of_sight_has_what_its_name_says() -> None:
    facts, policy = opened()
    facts.admit([7], [3], [0], [named(chain_of(b"a", 4)[3], 1)])
    facts.release([7])
    assert (policy.view.group[7], policy.view.end[7], facts.tokens_of(named(b"", 0))) == (1, 16, 8)


def manager_of(*kinds: tuple[str, dict[str, Any]], drops: tuple[int, ...] = ()) -> Any:
    pool = object()
    specs = [type(name, (), {"page_size_bytes": 10, **facts})() for name, facts in kinds]
    managers = [SimpleNamespace(block_size=16, block_pool=pool) for _ in kinds]
    return SimpleNamespace(block_pool=pool, coordinator=SimpleNamespace(
        drop_eagle_group_ids=set(drops), single_type_managers=managers,
        kv_cache_config=SimpleNamespace(kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"]) for spec in specs])))  # fmt: skip


def test_vllm_s_groups_are_read_and_others_refused() -> None:
    window = ("SlidingWindowSpec", {"sliding_window": 40})
    chunk = ("ChunkedLocalAttentionSpec", {"attention_chunk_size": 48})
    kinds = ("FullAttentionSpec", {}), window, ("MambaSpec", {}), chunk
    for drops in ((), (0, 2), (1, 3)):
        found = kv_groups(manager_of(*kinds, drops=drops))
        assert [(group.kind, group.length, group.lookahead_drop, group.block_bytes) for group in found] == [
            ("full", 0, 0 in drops, 20), ("window", 40, 1 in drops, 20), ("state", 0, False, 20),
            ("chunk", 48, False, 20),
        ]  # fmt: skip
    with pytest.raises(Unsupported, match="group 1 is of CrossAttentionSpec; PolicyConnector leads full"):
        kv_groups(manager_of(window, ("CrossAttentionSpec", {})))
    manager = manager_of(window, window)
    manager.coordinator.single_type_managers[1].block_pool = object()
    with pytest.raises(Unsupported, match="SlidingWindowSpec with blocks in a pool of its own"):
        kv_groups(manager)
