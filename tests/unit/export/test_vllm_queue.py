"""vLLM's queue led by a policy, over stand-ins for vLLM's pool; tests/engines has the real one."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from engine_stand_ins import FreeQueue, PoolBlock

from framework.errors import ConfigError, Unsupported
from framework.export.host_blocks import build_policy
from framework.export.pool_facts import PoolFacts
from framework.export.vllm_connector import HOOKS, options_of, require_hooks
from framework.export.vllm_queue import PolicyQueue
from framework.interfaces.eviction import EvictionPolicy, ScoredPolicy


class Mru(ScoredPolicy):
    def score(self, block: Any, now: float) -> int:
        return -int(block.last_access)


class Broken(ScoredPolicy):
    def score(self, block: Any, now: float) -> int:
        raise RuntimeError("out of ideas")


class Declines(ScoredPolicy):
    def score(self, block: Any, now: float) -> int:
        return 0

    def keep(self, block: Any, now: float) -> bool:
        return False


def queue_of(policy: EvictionPolicy, num_blocks: int = 6) -> tuple[PolicyQueue, list[PoolBlock], list[list[PoolBlock]]]:
    blocks = [PoolBlock(i) for i in range(num_blocks + 1)]
    facts = PoolFacts(policy, num_blocks, 16, lambda: 0.0)
    declined: list[list[PoolBlock]] = []
    return (
        PolicyQueue(FreeQueue(blocks[1:]), blocks, facts, on_declined=declined.append, hash_of=bytes),
        blocks,
        declined,
    )


def cache(queue: PolicyQueue, names: list[bytes]) -> list[PoolBlock]:
    """Take, publish and release a chain of blocks."""
    taken = queue.popleft_n(len(names))
    for depth, (block, name) in enumerate(zip(taken, names, strict=True)):
        block.block_hash, block.block_hash_num_tokens = name, 16 * (depth + 1)
    queue.append_n(taken[::-1])
    return taken


def test_blocks_without_content_go_before_the_policy_is_asked() -> None:
    queue, _blocks, _ = queue_of(Mru())
    cache(queue, [b"a", b"b"])
    assert [block.block_id for block in queue.popleft_n(4)] == [3, 4, 5, 6]
    assert queue.num_free_blocks == 2


def test_the_policy_names_the_victim() -> None:
    queue, _, _ = queue_of(Mru(), 4)
    cache(queue, [b"a", b"b"])
    cache(queue, [b"c", b"d"])
    assert [block.block_hash for block in queue.popleft_n(2)] == [b"d", b"c"], (
        "the latest released goes first, deepest first"
    )
    assert queue.popleft().block_hash == b"b"


def test_a_block_that_is_used_again_is_no_victim() -> None:
    queue, _blocks, _ = queue_of(Mru(), 4)
    cache(queue, [b"a", b"b"])
    last = cache(queue, [b"c", b"d"])
    queue.remove(last[1])
    assert queue.popleft().block_hash == b"c"


def test_a_policy_that_fails_leaves_the_order_of_vllm_and_one_error(caplog: pytest.LogCaptureFixture) -> None:
    queue, _, _ = queue_of(Broken(), 4)
    with caplog.at_level("ERROR"):
        cache(queue, [b"a", b"b"])
        cache(queue, [b"c", b"d"])
        assert [block.block_hash for block in queue.popleft_n(4)] == [b"b", b"a", b"d", b"c"]
    assert len(caplog.records) == 1
    assert "out of ideas" in caplog.text
    assert "not asked again" in caplog.text


def test_what_the_policy_declines_is_handed_to_who_watches() -> None:
    queue, _, declined = queue_of(Declines())
    cache(queue, [b"a", b"b"])
    assert [block.block_hash for block in declined[0]] == [b"b", b"a"]


def test_parents_and_children_follow_publication_and_loss() -> None:
    facts = PoolFacts(build_policy("lru", 5), 5, 16, lambda: 0.0)
    facts.admit([1, 2, 3], [0, 1, 2], [0, 1, 2], [b"a", b"b", b"c"])
    facts.admit([4], [1], [1], [b"d"])
    view = facts.policy.plugin.blocks
    assert [view.children[block] for block in (1, 2, 3, 4)] == [2, 1, 0, 0]
    assert [view.parent[block] for block in (1, 2, 3, 4)] == [0, 1, 2, 1]
    facts.release([3, 2])
    facts.drop(2)
    assert [view.children[block] for block in (1, 3)] == [1, 0]
    assert view.parent[3] == 0
    facts.admit([2], [0], [0], [b"e"])
    assert [view.children[2], view.parent[2]] == [0, 0]


def test_options_are_checked() -> None:
    assert options_of({}) == ("lru", 0, "seconds")
    for wrong in ({"policy": "lru"}, {"clock": "hours"}, {"seed": "1"}):
        with pytest.raises(ConfigError):
            options_of(wrong)


def test_a_hook_that_vllm_lacks_is_named_with_its_parameters() -> None:
    queue = FreeQueue([])
    require_hooks(FreeKVCacheBlockQueue=queue)
    queue.append_n = lambda several: None  # type: ignore[method-assign, assignment]
    with pytest.raises(Unsupported, match=r"FreeKVCacheBlockQueue\.append_n\(blocks\); .*0\.32\.0 and 0\.33\.0"):
        require_hooks(FreeKVCacheBlockQueue=queue)
    with pytest.raises(Unsupported, match=r"BlockPool\.touch\(blocks\), BlockPool\.evict_blocks"):
        require_hooks(BlockPool=object())
    assert len(HOOKS["BlockPool"]) == 4


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_connector_says_what_to_install() -> None:
    from framework.export import vllm_connector

    with pytest.raises(Unsupported, match=r"pip install vllm==0\.33\.0"):
        vllm_connector.PolicyConnector
