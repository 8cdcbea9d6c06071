"""What paged allocators do beyond the kit: forks, parts, watermark, leaf-only, events, the hook, shipped faults."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from paged_helpers import NS, ConstantHash, admit, info, make, serve, table, tokens

from framework.errors import DuplicateRequest, InvalidArgument, OutOfBlocks, PluginError
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.hash import HashScheme
from framework.paged.allocator import PagedAllocator
from framework.types import BlockCopy, BlockId, Namespace, RequestId, TableChange
from framework_builtin.allocator.cow import CowAllocator
from framework_builtin.allocator.naive import NaiveAllocator
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.random import Random
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh64 import Xxh64

ONE = RequestId(1)


def running(kind: type[PagedAllocator], num_blocks: int = 8) -> PagedAllocator:
    """Request 1 with five written tokens in blocks of two."""
    allocator = make(num_blocks, 2, kind=kind)
    admit(allocator, 1, tokens(1, 2, 3, 4, 5))
    allocator.commit(ONE, tokens(1, 2, 3, 4, 5))
    return allocator


@pytest.mark.parametrize("kind", [NaiveAllocator, CowAllocator, PrefixAllocator, PrefixCowAllocator])
def test_a_fork_shares_what_its_allocator_shares(kind: type[PagedAllocator]) -> None:
    allocator = running(kind)
    change = allocator.fork(ONE, info(2), 5)
    mine, theirs = table(allocator, 1), table(allocator, 2)
    copied = {"none": 3, "full": 1, "all": 0}[kind.share_forks]
    assert change.copies == tuple(
        BlockCopy(BlockId(a), BlockId(b)) for a, b in zip(mine, theirs, strict=True) if a != b
    )
    assert len(change.copies) == copied, change
    assert allocator.stats().copied_blocks == copied
    allocator.check()


def test_a_fork_refuses_another_namespace_a_taken_id_and_tokens_without_room() -> None:
    allocator = running(PrefixCowAllocator)
    with pytest.raises(InvalidArgument, match="stays in its parent's"):
        allocator.fork(ONE, info(2, Namespace(salt="x")), 5)
    with pytest.raises(InvalidArgument, match="has room for 6"):
        allocator.fork(ONE, info(2), 7)
    with pytest.raises(DuplicateRequest):
        allocator.fork(ONE, info(1), 5)
    allocator.check()


def test_the_watermark_keeps_blocks_free_at_admission_only() -> None:
    allocator = make(10, 1, watermark=0.2)
    assert admit(allocator, 1, tokens(*range(10))) == 0, "alone, a request may take all"
    allocator.free(ONE)
    admit(allocator, 2, tokens(1, 2, 3))
    hit = allocator.lookup(tokens(*range(6)), NS)
    assert not allocator.fits(info(3), tokens(*range(6)), hit)
    with pytest.raises(OutOfBlocks, match="2 of them kept by the watermark"):
        allocator.allocate(info(3), tokens(*range(6)), hit)
    admit(allocator, 3, tokens(*range(5)))
    allocator.extend(RequestId(3), 7)
    assert allocator.stats().free_blocks == 0


@pytest.mark.parametrize("bad", [-0.1, 1.0, float("nan")])
def test_a_watermark_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(InvalidArgument, match="watermark"):
        make(watermark=bad)


@pytest.mark.parametrize("option", [{"duplicates": "keep"}, {"leaf_only": True}])
def test_what_an_allocator_that_shares_no_prefix_would_ignore_is_refused(option: dict[str, Any]) -> None:
    kind = type("Plain", (PagedAllocator,), {"share_prefix": False})
    with pytest.raises(InvalidArgument, match="Plain shares none across requests"):
        kind(num_blocks=4, block_size=2, hash=Xxh64(), eviction=Lru(), **option)


@pytest.mark.parametrize("name", ["num_blocks", "block_size"])
@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "4", None])
def test_sizes_that_are_no_sizes_are_refused(name: str, bad: object) -> None:
    with pytest.raises(InvalidArgument, match=name):
        make(**{name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [Lru, Fifo, Random])
@pytest.mark.parametrize("hash", [None, Xxh64(), ConstantHash()])
def test_leaf_only_never_evicts_a_parent_before_its_children(policy: type, hash: object) -> None:
    allocator = make(10, 1, hash=hash, eviction=policy(), leaf_only=True)
    heard: list[CacheEvent] = []
    allocator.listen(heard.append)
    draw = np.random.default_rng(3)
    for number in range(300):
        prompt = draw.integers(0, 2, int(draw.integers(1, 8)), dtype=np.int32)
        serve(allocator, number, prompt)
        allocator.check()
        for block in range(1, 11):
            if allocator.pool.block_hash[block] is not None and allocator.pool.depth[block]:
                assert allocator.cache.index.parent(block), f"block {block} is an orphan after request {number}"
    assert sum(len(event.blocks) for event in heard if event.kind == "evict") > 20


def test_events_tell_all_that_was_published_and_lost_in_order() -> None:
    allocator = make(3, 2)
    heard: list[CacheEvent] = []
    allocator.listen(heard.append)
    allocator.advance(1.0)
    serve(allocator, 1, tokens(1, 2, 3, 4, 5))
    allocator.advance(2.0)
    admit(allocator, 2, tokens(9, 9, 9, 9))
    assert [(event.kind, len(event.blocks)) for event in heard] == [("admit", 2), ("evict", 1)]
    assert heard[1].hashes[0] == heard[0].hashes[1], "the deepest block goes first"
    with pytest.raises(InvalidArgument, match="time goes forward"):
        allocator.advance(1.0)
    allocator.listen(None)
    allocator.reset()
    assert len(heard) == 2


def test_a_table_is_a_copy() -> None:
    allocator = running(PrefixCowAllocator)
    copy = allocator.table(ONE)
    assert copy.dtype == np.int32
    copy[:] = 0
    allocator.check()


class LowestFirst(PrefixCowAllocator):
    """Hands out the free blocks of lowest id: an allocator that overrides one choice."""

    def choose_free(self, count: int) -> Sequence[BlockId]:
        return [BlockId(block) for block in sorted(self.pool.free)[:count]]


def test_the_hook_says_which_free_blocks_are_handed_out() -> None:
    allocator = make(6, 2, kind=LowestFirst)
    admit(allocator, 1, tokens(1, 2, 3))
    admit(allocator, 2, tokens(4, 5, 6))
    allocator.free(ONE)
    allocator.check()
    admit(allocator, 3, tokens(7, 8, 9, 1, 2))
    assert (table(allocator, 2), table(allocator, 3)) == ([3, 4], [1, 2, 5])
    allocator.check()


@pytest.mark.parametrize("answer", [[], [1, 1], [1, 99], [1.0, 2.0], [True, 2], [1, 0], [3, 4], None])
def test_a_hook_that_names_other_than_free_blocks_is_stopped(answer: object) -> None:
    class Wrong(PrefixCowAllocator):
        answer: object = [4, 3]

        def choose_free(self, count: int) -> Sequence[BlockId]:
            return self.answer  # type: ignore[return-value]

    allocator = make(6, 2, kind=Wrong)
    admit(allocator, 1, tokens(1, 2, 3))
    allocator.answer = answer  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="choose_free"):
        admit(allocator, 2, tokens(4, 5, 6))


@pytest.mark.parametrize("hash", [None, Xxh64()])
def test_a_commit_into_a_block_published_with_other_content_is_refused(hash: object) -> None:
    allocator = make(8, 2, hash=hash)
    for length in (2, 4):  # one block, and two at once
        parent, child = RequestId(length), RequestId(length + 1)
        admit(allocator, parent, tokens(length))
        allocator.extend(parent, length)
        allocator.fork(parent, info(child), length)
        allocator.commit(parent, tokens(*[length] * length))  # neither has extended: they write the same blocks
        with pytest.raises(InvalidArgument, match="published with other content; extend first"):
            allocator.commit(child, tokens(length, *[9] * (length - 1)))
        allocator.check()


def test_the_shared_namespaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.paged.index._MAX_NAMESPACES", 3)
    for hash in (None, Xxh64()):
        allocator = make(32, 2, hash=hash)
        for number in range(10):
            serve(allocator, number, tokens(1, 2, 3), Namespace(salt=str(number)))
            allocator.check()
        assert len(allocator.hasher._roots) <= 3
        assert allocator.lookup(tokens(1, 2, 3), Namespace(salt="9")).num_tokens == 2


PROMPT = tokens(*range(11))


def part(allocator: Any, number: int, num_tokens: int, prompt: Any = PROMPT) -> int:
    hit = allocator.lookup(prompt, NS)
    allocator.allocate(info(number), prompt, hit, num_tokens)
    return hit.num_tokens


def test_a_part_has_the_blocks_of_its_tokens_and_grows_by_extend() -> None:
    allocator = make(8, 2)
    part(allocator, 1, 5)
    assert len(table(allocator, 1)) == 3
    allocator.commit(RequestId(1), PROMPT[:5])
    allocator.extend(RequestId(1), 9)
    assert len(table(allocator, 1)) == 5
    allocator.commit(RequestId(1), PROMPT[:9])
    allocator.check()
    assert allocator.lookup(PROMPT, NS).num_tokens == 8
    assert allocator.stats().prompt_tokens == 11, "the whole prompt counts, once"


def test_a_part_shares_what_is_cached() -> None:
    allocator = make(8, 2)
    serve(allocator, 1, PROMPT[:7])
    assert part(allocator, 2, 8) == 6
    assert len(table(allocator, 2)) == 4
    allocator.publish(RequestId(2), PROMPT[:8])
    allocator.check()
    assert allocator.lookup(PROMPT, NS).num_tokens == 8


@pytest.mark.parametrize("num_tokens", [0, 6, 12])
def test_a_part_is_more_than_the_hit_and_at_most_the_prompt(num_tokens: int) -> None:
    allocator = make(8, 2)
    serve(allocator, 1, PROMPT[:7])
    before = allocator.stats()
    with pytest.raises(InvalidArgument, match=rf"room for {num_tokens} tokens"):
        part(allocator, 2, num_tokens)
    assert allocator.stats() == before
    allocator.check()


def test_no_more_is_published_than_there_is_room_for() -> None:
    allocator = make(8, 2)
    part(allocator, 1, 5)
    with pytest.raises(InvalidArgument, match="publish of 8 tokens for request 1: there is room for 6"):
        allocator.publish(RequestId(1), PROMPT[:8])
    assert allocator.lookup(PROMPT, NS).num_tokens == 0


def test_what_was_published_and_not_committed_is_not_found_after_free() -> None:
    allocator = make(8, 2)
    part(allocator, 1, 11)
    allocator.publish(RequestId(1), PROMPT)
    assert allocator.lookup(PROMPT, NS).num_tokens == 10
    allocator.check()
    allocator.free(RequestId(1))
    assert allocator.lookup(PROMPT, NS).num_tokens == 0
    assert allocator.stats().free_blocks == 8
    allocator.check()


def test_a_generated_token_that_was_published_is_known() -> None:
    allocator = make(8, 2)
    part(allocator, 1, 11)
    allocator.commit(RequestId(1), PROMPT)
    longer = np.append(PROMPT, np.int32(99)).astype(np.int32)
    allocator.extend(RequestId(1), 12)
    allocator.publish(RequestId(1), longer)
    with pytest.raises(InvalidArgument, match="token 11 is 98"):
        allocator.commit(RequestId(1), np.append(PROMPT, np.int32(98)).astype(np.int32))
    allocator.commit(RequestId(1), longer)
    allocator.check()


def test_f2_a_collision_ends_what_a_request_publishes() -> None:
    allocator = make(8, 2, hash=ConstantHash())
    serve(allocator, 1, tokens(8, 8))
    admit(allocator, 2, tokens(1, 2, 3, 4, 5))
    for end in (2, 4):
        allocator.commit(RequestId(2), tokens(1, 2, 3, 4)[:end])
    assert allocator.stats().collisions == 1
    allocator.check()


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


def operations(num_blocks: int) -> int:
    """Bytecode lines run by one hit, one eviction and one free in a full pool of that size."""
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
