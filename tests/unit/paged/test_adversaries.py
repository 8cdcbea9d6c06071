"""Policies and hash schemes that misbehave are stopped, named, and leave the pool as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_helpers import NS, admit, info, make, serve, table, tokens

from framework.errors import NoCandidate, PluginError
from framework.paged.allocator import PagedAllocator
from framework.types import RequestId
from framework_builtin.eviction.lru import Lru
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh64 import Xxh64


class Bad(Lru):
    """LRU until `spoil` is set; from the n-th victim on it answers with `answer`, or raises it."""

    def __init__(self) -> None:
        self.good, self.answer, self.spoil = 0, None, ""

    def victim(self, now: float) -> Any:
        if self.spoil != "victim":
            return super().victim(now)
        self.good -= 1
        if self.good >= 0:
            return super().victim(now)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def release(self, blocks: Any, now: float) -> None:
        if self.spoil == "release":
            raise RuntimeError("boom")
        super().release(blocks, now)


def state(allocator: PagedAllocator) -> tuple[Any, ...]:
    pool = allocator.pool
    columns = [
        list(getattr(pool, n))
        for n in ("ref", "candidate", "block_hash", "children", "last_access", "hits", "priority")
    ]
    return allocator.stats(), list(pool.free), columns, {r: list(t.blocks) for r, t in allocator.tables().items()}


def full(policy: Any, leaf_only: bool = False, hash: Any = None) -> PagedAllocator:
    """Six blocks: 1 free, request 1 uses two (one published), three cached in one chain."""
    allocator = make(6, 2, eviction=policy, leaf_only=leaf_only, hash=hash)
    serve(allocator, 9, tokens(5, 5, 6, 6, 7, 7))
    admit(allocator, 1, tokens(1, 2, 3))
    allocator.commit(RequestId(1), tokens(1, 2, 3))
    assert allocator.stats().free_blocks == 1
    return allocator


ANSWERS = [None, 0, -1, 7, 10**9, 1.0, "1", True, np.int64(2), [1], RuntimeError("boom"), NoCandidate("none")]


@pytest.mark.parametrize("hash", [Sha256(), Xxh64()])
@pytest.mark.parametrize("leaf_only", [False, True])
@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("answer", [*ANSWERS, "pinned", "free", "again"], ids=repr)
def test_a_wrong_victim_is_named_and_changes_nothing(answer: Any, good: int, leaf_only: bool, hash: Any) -> None:
    policy = Bad()
    allocator = full(policy, leaf_only, hash)
    if answer == "pinned":
        answer = table(allocator, 1)[0]
    elif answer == "free":
        answer = allocator.pool.free[0]
    elif answer == "again":
        answer = Lru.victim(policy, 0.0)
        good = max(good, 1)
    policy.answer, policy.good, policy.spoil = answer, good, "victim"
    before = state(allocator)
    with pytest.raises(PluginError, match=r"eviction policy Bad\.victim"):
        admit(allocator, 2, tokens(9, 9, 9, 9, 9, 9, 9, 9))
    assert state(allocator) == before
    allocator.check()
    policy.spoil = ""
    assert admit(allocator, 3, tokens(9, 9, 9, 9, 9, 9, 9, 9)) == 0, "the policy has its candidates back"
    allocator.check()
    assert allocator.stats().evictions == 3


class WrongNames(Sha256):
    """SHA-256 until `answer` is set."""

    answer: Any = None

    def blocks(self, parent: Any, tokens: Any, block_size: int) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "mutate":
            tokens[:] = 0
        return super().blocks(parent, tokens, block_size) if self.answer is None else self.answer


NAMES = [RuntimeError("boom"), "mutate", [], [b"a"], [b"a", b"b", b"c"], [b"a", ""], [b"a", None], [b"a", b""], "ab", 3]


@pytest.mark.parametrize("answer", NAMES, ids=repr)
def test_a_wrong_name_is_named_and_changes_nothing(answer: Any) -> None:
    scheme = WrongNames()
    allocator = make(8, 2, hash=scheme)
    prompt = tokens(1, 2, 3, 4, 5)
    serve(allocator, 1, tokens(1, 2, 3))
    admit(allocator, 2, tokens(1, 2))
    hit = allocator.lookup(tokens(7), NS)
    before = state(allocator)
    scheme.answer = answer
    with pytest.raises(PluginError, match=r"hash scheme WrongNames\.blocks"):
        allocator.lookup(prompt, NS)
    with pytest.raises(PluginError, match=r"hash scheme WrongNames\.blocks"):
        allocator.allocate(info(3), prompt, hit)
    assert prompt.tolist() == [1, 2, 3, 4, 5]
    assert state(allocator) == before
    allocator.check()


def test_a_scheme_that_fails_at_commit_changes_nothing() -> None:
    scheme = WrongNames()
    allocator = make(8, 2, hash=scheme)
    admit(allocator, 1, tokens(1))
    allocator.extend(RequestId(1), 5)
    before = state(allocator)
    scheme.answer = RuntimeError("boom")
    with pytest.raises(PluginError, match="boom"):
        allocator.commit(RequestId(1), tokens(1, 2, 3, 4))
    assert state(allocator) == before
    scheme.answer = None
    allocator.commit(RequestId(1), tokens(1, 7, 3, 4))
    assert allocator.lookup(tokens(1, 7, 3, 4, 0), NS).num_tokens == 4
    allocator.check()


@pytest.mark.parametrize("bad", [b"", None, 3, "root"])
def test_a_root_that_is_no_name_is_named(bad: Any) -> None:
    class NoRoot(Sha256):
        def root(self, namespace: Any, block_size: int) -> Any:
            return bad

    with pytest.raises(PluginError, match=r"hash scheme NoRoot\.root"):
        make(8, 2, hash=NoRoot()).lookup(tokens(1, 2, 3), NS)


@pytest.mark.parametrize("leaf_only", [False, True])
def test_a_policy_that_raises_at_copy_on_write_loses_no_copy(leaf_only: bool) -> None:
    policy = Bad()
    allocator = make(6, 2, eviction=policy, leaf_only=leaf_only)
    admit(allocator, 1, tokens(1, 2, 3, 4))
    allocator.commit(RequestId(1), tokens(1, 2, 3, 4))
    allocator.fork(RequestId(1), info(2), 3)
    allocator.free(RequestId(1))
    before = table(allocator, 2)
    policy.spoil = "release"
    with pytest.raises(PluginError, match=r"Bad\.release"):
        allocator.extend(RequestId(2), 6)
    assert table(allocator, 2) == before
    allocator.check()
    policy.spoil = ""
    assert len(allocator.extend(RequestId(2), 6).copies) == 1
    allocator.check()
