"""Policies and hash schemes that name what cannot be are stopped and named."""

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
    """LRU until `spoilt`; from the n-th victim on it answers with `answer`, or raises it."""

    def __init__(self) -> None:
        self.good, self.answer, self.spoilt = 0, None, False

    def victim(self, now: float) -> Any:
        self.good -= self.spoilt
        if not self.spoilt:
            return super().victim(now)
        if self.good >= 0:
            return super().victim(now)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def full(policy: Any, leaf_only: bool = False, hash: Any = None) -> PagedAllocator:
    """Six blocks: 1 free, request 1 uses two (one published), three cached in one chain."""
    allocator = make(6, 2, eviction=policy, leaf_only=leaf_only, hash=hash)
    serve(allocator, 9, tokens(5, 5, 6, 6, 7, 7))
    admit(allocator, 1, tokens(1, 2, 3))
    allocator.commit(RequestId(1), tokens(1, 2, 3))
    assert allocator.stats().free_blocks == 1
    return allocator


ANSWERS = [None, 0, -1, 7, 10**9, 1.0, "1", True, np.int64(2), [1], NoCandidate("none")]


@pytest.mark.parametrize("hash", [Sha256(), Xxh64()])
@pytest.mark.parametrize("leaf_only", [False, True])
@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("answer", [*ANSWERS, "pinned", "free", "again"], ids=repr)
def test_a_wrong_victim_is_refused_by_name(answer: Any, good: int, leaf_only: bool, hash: Any) -> None:
    policy = Bad()
    allocator = full(policy, leaf_only, hash)
    if answer == "pinned":
        answer = table(allocator, 1)[0]
    elif answer == "free":
        answer = allocator.pool.free[0]
    elif answer == "again":
        answer = Lru.victim(policy, 0.0)
        good = max(good, 1)
    policy.answer, policy.good, policy.spoilt = answer, good, True
    with pytest.raises(PluginError, match=r"eviction policy Bad\.victim"):
        admit(allocator, 2, tokens(9, 9, 9, 9, 9, 9, 9, 9))


class WrongNames(Sha256):
    """SHA-256 until `answer` is set."""

    answer: Any = None

    def blocks(self, parent: Any, tokens: Any, block_size: int) -> Any:
        return super().blocks(parent, tokens, block_size) if self.answer is None else self.answer


NAMES = [[], [b"a"], [b"a", b"b", b"c"], [b"a", ""], [b"a", None], [b"a", b""], "ab", 3]


@pytest.mark.parametrize("answer", NAMES, ids=repr)
def test_a_wrong_name_is_refused_by_name(answer: Any) -> None:
    scheme = WrongNames()
    allocator = make(8, 2, hash=scheme)
    hit = allocator.lookup(tokens(7), NS)
    scheme.answer = answer
    with pytest.raises(PluginError, match=r"hash scheme WrongNames\.blocks"):
        allocator.lookup(tokens(1, 2, 3, 4, 5), NS)
    with pytest.raises(PluginError, match=r"hash scheme WrongNames\.blocks"):
        allocator.allocate(info(3), tokens(1, 2, 3, 4, 5), hit)


def test_tokens_are_handed_out_read_only() -> None:
    class Mutates(Sha256):
        def blocks(self, parent: Any, tokens: Any, block_size: int) -> Any:
            tokens[:] = 0

    prompt = tokens(1, 2, 3, 4, 5)
    with pytest.raises(ValueError, match="read-only"):
        make(8, 2, hash=Mutates()).lookup(prompt, NS)
    assert prompt.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("bad", [b"", None, 3, "root"])
def test_a_root_that_is_no_name_is_named(bad: Any) -> None:
    class NoRoot(Sha256):
        def root(self, namespace: Any, block_size: int) -> Any:
            return bad

    with pytest.raises(PluginError, match=r"hash scheme NoRoot\.root"):
        make(8, 2, hash=NoRoot()).lookup(tokens(1, 2, 3), NS)
