"""The faults that real block managers shipped, each as a test that a faulty allocator fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
from paged_helpers import NS, admit, info, make, serve, table, tokens

from framework.errors import InvalidArgument, InvalidTokens
from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, RequestId, TableChange
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh3_128 import Xxh3_128
from framework_builtin.hash.xxh64 import Xxh64


class RawXxh64(HashScheme):
    """BlockHashes blocks as nano-vllm does: xxh64 over the parent's digest, if any, and the tokens as int64."""

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        return BlockHash(b"root")

    def block(self, parent: BlockHash, tokens: Any) -> BlockHash:
        prefix = b"" if parent == b"root" else parent
        return BlockHash(xxhash.xxh64_digest(prefix + tokens.astype("<i8").tobytes()))


def test_f1_the_index_never_grows_beyond_the_pool() -> None:
    allocator = make(10, 2)
    for number in range(500):
        serve(allocator, number, tokens(number, 1, number, 2, 3))
    assert len([*allocator.cache.index.nodes()]) <= 10
    allocator.check()


@pytest.mark.parametrize("block_size", [20, 32, 64, 256])
def test_f2_two_blocks_of_equal_xxh64_digest_never_share(block_size: int) -> None:
    first, second = np.full(2 * block_size + 1, 7, dtype=np.int32), np.full(2 * block_size + 1, 7, dtype=np.int32)
    first[[0, 4, 8, 12, 16]] = [108879, 39402, 22434, 64464, 80930]
    second[[0, 4, 8, 12, 16]] = [24108, 98172, 9969, 97247, 62542]
    scheme = RawXxh64()
    names = [scheme.blocks(scheme.root(NS, block_size), prompt, block_size) for prompt in (first, second)]
    assert names[0] == names[1], "the golden pair no longer collides: the test proves nothing"
    allocator = make(8, block_size, hash=scheme)
    serve(allocator, 1, first)
    assert allocator.lookup(second, NS).num_tokens == 0
    assert admit(allocator, 2, second) == 0
    for end in (block_size, 2 * block_size):
        allocator.commit(RequestId(2), second[:end])
    allocator.free(RequestId(2))
    assert allocator.lookup(second, NS).num_tokens == 0, "the second block's tokens are equal, its prefix is not"
    assert allocator.lookup(first, NS).num_tokens == 2 * block_size
    assert allocator.stats().collisions == 1
    allocator.check()


def test_f2_a_hit_of_one_namespace_is_refused_in_another() -> None:
    allocator = make(8, 2)
    prompt = tokens(1, 2, 3, 4, 5)
    serve(allocator, 1, prompt)
    hit = allocator.lookup(prompt, NS)
    with pytest.raises(InvalidArgument, match="was used in"):
        allocator.allocate(info(2, Namespace(salt="x")), prompt, hit)
    with pytest.raises(InvalidArgument, match="was used in"):
        allocator.lookup(prompt, Namespace(salt="x"), hit)


@pytest.mark.parametrize("hash", [Sha256(), Xxh64()])
def test_f5_two_requests_that_compute_the_same_end_with_one_copy(hash: HashScheme) -> None:
    allocator = make(8, 2, hash=hash)
    prompt = tokens(1, 2, 3, 4, 5)
    admit(allocator, 1, prompt)
    admit(allocator, 2, prompt)
    assert not set(table(allocator, 1)) & set(table(allocator, 2))
    assert allocator.commit(RequestId(1), prompt) == TableChange(3)
    assert allocator.commit(RequestId(2), prompt) == TableChange(0)
    assert table(allocator, 1)[:2] == table(allocator, 2)[:2]
    assert table(allocator, 1)[2] != table(allocator, 2)[2]
    allocator.check()
    allocator.free(RequestId(1))
    assert allocator.lookup(prompt, NS).num_tokens == 4, "freeing one copy hid the other"
    allocator.free(RequestId(2))
    assert allocator.stats().cached_blocks == 2
    allocator.check()


@pytest.mark.parametrize("scheme", [Sha256(), Xxh64(), Xxh3_128()])
def test_f7_names_do_not_depend_on_the_container(scheme: HashScheme) -> None:
    allocator = make(8, 2, hash=scheme)
    serve(allocator, 1, tokens(1, 2, 3))
    for same in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3], dtype=np.uint8), np.array([1, 2, 3])):
        assert allocator.lookup(same, NS).num_tokens == 2, type(same)
    for bad in ([1.0, 2.0], [True, False], [-1, 2], [2**31], np.zeros((2, 2), dtype=np.int32), np.empty(0)):
        with pytest.raises(InvalidTokens):
            allocator.lookup(bad, NS)


@pytest.mark.parametrize("hash", [Sha256(), Xxh64()])
def test_f8_a_hit_stops_at_the_first_hole_and_goes_on_when_it_is_filled(hash: HashScheme) -> None:
    class Chosen(type(make().cache.host.policy.plugin)):  # type: ignore[misc]
        target = 0

        def victim(self, now: float) -> int:
            return self.target or super().victim(now)

    policy = Chosen()
    allocator = make(5, 2, hash=hash, eviction=policy)
    prompt = tokens(1, 2, 3, 4, 5, 6, 7)
    admit(allocator, 1, prompt)
    allocator.commit(RequestId(1), prompt)
    middle = table(allocator, 1)[1]
    allocator.free(RequestId(1))
    policy.target = middle
    admit(allocator, 2, tokens(9, 9, 9, 9, 9))
    policy.target = 0
    assert allocator.lookup(prompt, NS).num_tokens == 2, "the third block is there, its parent is not"
    allocator.check()
    allocator.free(RequestId(2))
    serve(allocator, 3, prompt[:5])
    assert allocator.lookup(prompt, NS).num_tokens == 6, "the orphan is found again below its recomputed parent"
    allocator.check()


def operations(num_blocks: int) -> int:
    """Bytecode lines run by one hit, one eviction and one free in a full pool of that size."""
    import sys

    allocator = make(num_blocks, 1)
    for number in range(num_blocks // 8):
        serve(allocator, number, np.arange(8, dtype=np.int32) + 8 * number)
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        serve(allocator, 10**6, np.arange(8, dtype=np.int32) + 8 * (num_blocks // 16))
        serve(allocator, 10**6 + 1, np.arange(8, dtype=np.int32) + 10**6)
    finally:
        sys.settrace(old)
    assert allocator.stats().evictions > 0
    return count


def test_f15_work_does_not_grow_with_the_pool() -> None:
    small, large = operations(64), operations(4096)
    assert large <= 1.2 * small + 50, f"{small} lines at 64 blocks, {large} at 4096"
