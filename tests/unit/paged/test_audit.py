"""A corruption made by hand for each invariant: check() names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paged_helpers import admit, make, serve, tokens

from framework.errors import InvariantViolation
from framework.paged.allocator import PagedAllocator
from framework.types import RequestId
from framework_builtin.allocator.contiguous import ContiguousAllocator
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.allocator.radix import RadixAllocator
from framework_builtin.hash.xxh64 import Xxh64


def populated(hash: object = None, leaf_only: bool = False, kind: Any = PrefixCowAllocator) -> PagedAllocator:
    """Eight blocks of two tokens: request 1 holds three, two of them published; two more are cached; three are free."""
    allocator = make(8, 2, kind=kind, hash=hash, leaf_only=leaf_only)
    serve(allocator, 9, tokens(5, 5, 6, 6))
    admit(allocator, 1, tokens(1, 2, 3, 4, 5))
    allocator.commit(RequestId(1), tokens(1, 2, 3, 4, 5))
    allocator.check()
    return allocator


def held(allocator: PagedAllocator) -> int:
    return allocator.tables()[RequestId(1)].blocks[0]


def cached(allocator: PagedAllocator) -> int:
    return next(b for b in range(1, 9) if allocator.pool.block_hash[b] is not None and not allocator.pool.ref[b])


def set_column(name: str, which: Callable[[PagedAllocator], int], value: object) -> Callable[[PagedAllocator], None]:
    def corrupt(allocator: PagedAllocator) -> None:
        getattr(allocator.pool, name)[which(allocator)] = value

    return corrupt


def change_table(**fields: object) -> Callable[[PagedAllocator], None]:
    def corrupt(allocator: PagedAllocator) -> None:
        for name, value in fields.items():
            setattr(allocator.tables()[RequestId(1)], name, value)

    return corrupt


def lose_a_free_block(allocator: PagedAllocator) -> None:
    allocator.pool.free.pop()


def repeat_a_free_block(allocator: PagedAllocator) -> None:
    allocator.pool.free.append(allocator.pool.free[0])


def free_a_used_block(allocator: PagedAllocator) -> None:
    allocator.pool.set_free([held(allocator)])


def free_a_cached_block(allocator: PagedAllocator) -> None:
    allocator.pool.set_free([cached(allocator)])


def free_the_null_block(allocator: PagedAllocator) -> None:
    allocator.pool.set_free([0])


def count_a_block_too_many(allocator: PagedAllocator) -> None:
    allocator.pool.used += 1


def name_a_block_outside(allocator: PagedAllocator) -> None:
    allocator.tables()[RequestId(1)].blocks[2] = 9


def name_the_null_block(allocator: PagedAllocator) -> None:
    allocator.tables()[RequestId(1)].blocks[2] = 0


def name_a_block_twice(allocator: PagedAllocator) -> None:
    blocks = allocator.tables()[RequestId(1)].blocks
    blocks[2] = blocks[1]


def file_under_another_id(allocator: PagedAllocator) -> None:
    allocator.tables()[RequestId(2)] = allocator.tables().pop(RequestId(1))


def swap_the_published_blocks(allocator: PagedAllocator) -> None:
    blocks = allocator.tables()[RequestId(1)].blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]


def unpublish_a_used_block(allocator: PagedAllocator) -> None:
    allocator.pool.block_hash[held(allocator)] = None


def leave_a_stale_entry(allocator: PagedAllocator) -> None:
    """The block went back to the free set, its hash still finds it."""
    block = cached(allocator)
    allocator.pool.block_hash[block] = None
    allocator.pool.candidate[block] = 0
    allocator.pool.set_free([block])


def cache_a_parent_in_use(allocator: PagedAllocator) -> None:
    """The table lost its first block, whose child it still uses."""
    request = allocator.tables()[RequestId(1)]
    allocator.pool.ref[request.blocks[0]] = 0


CORRUPTIONS = [
    ("I1", lose_a_free_block),
    ("I1", count_a_block_too_many),
    ("I2", set_column("ref", held, 2)),
    ("I3", repeat_a_free_block),
    ("I3", set_column("slot", lambda a: a.pool.free[0], 2)),
    ("I5", free_a_used_block),
    ("I5", free_a_cached_block),
    ("I5", set_column("candidate", held, 1)),
    ("I5", set_column("candidate", cached, 0)),
    ("I6", set_column("ref", held, -1)),
    ("I6", set_column("ref", held, 5)),
    ("I8", file_under_another_id),
    ("I11", name_a_block_outside),
    ("I11", name_the_null_block),
    ("I12", name_a_block_twice),
    ("I12", change_table(committed=7)),
    ("I16", free_the_null_block),
    ("I16", set_column("block_hash", lambda _: 0, b"null")),
    ("I20", unpublish_a_used_block),
    ("I20", leave_a_stale_entry),
    ("I20", set_column("block_hash", cached, b"another name")),
    ("I20", set_column("children", held, 7)),
    ("I21", change_table(committed=3)),
    ("I22", swap_the_published_blocks),
    ("I22", set_column("depth", held, 4)),
    ("I28", cache_a_parent_in_use),
]


@pytest.mark.parametrize("hash", [None, Xxh64()], ids=["by hash", "by trie"])
@pytest.mark.parametrize(("invariant", "corrupt"), CORRUPTIONS)
def test_check_names_the_broken_invariant(
    invariant: str, corrupt: Callable[[PagedAllocator], None], hash: object
) -> None:
    allocator = populated(hash)
    corrupt(allocator)
    with pytest.raises(InvariantViolation, match=rf"\b{invariant}: "):
        allocator.check()


def test_check_finds_a_hash_that_leads_to_the_wrong_block() -> None:
    allocator = populated()
    index = allocator.cache.index
    index._block[index._node[held(allocator)]] = cached(allocator)
    with pytest.raises(InvariantViolation, match="I20: the index finds block"):
        allocator.check()


def test_check_finds_a_ghost_that_nothing_needs() -> None:
    allocator = populated()
    index = allocator.cache.index
    index._floating[b"gone"] = node = index._unused.pop()
    index._ghosts[node] = b"gone"
    with pytest.raises(InvariantViolation, match=r"I20: .* ghost"):
        allocator.check()


@pytest.mark.parametrize(
    ("column", "value", "invariant"), [("_above", 77, "I20"), ("_kids", 5, "I20"), ("_resident", 5, "I20")]
)
def test_check_finds_a_damaged_trie(column: str, value: int, invariant: str) -> None:
    allocator = populated(kind=RadixAllocator)
    index = allocator.cache.index
    getattr(index, column)[index._node[held(allocator)]] = value
    with pytest.raises(InvariantViolation, match=f"{invariant}: "):
        allocator.check()


def test_check_finds_a_content_known_as_a_ghost() -> None:
    allocator = populated(Xxh64())
    index = allocator.cache.index
    index._ghosts[index._node[held(allocator)]] = allocator.pool.block_hash[held(allocator)]
    with pytest.raises(InvariantViolation, match=r"I20: .* ghost"):
        allocator.check()


def test_check_finds_a_node_below_nothing() -> None:
    allocator = populated(kind=RadixAllocator)
    index = allocator.cache.index
    node = next(node for node, _ in index.nodes() if index._above[node] > 0)
    index._above[node] = 999
    with pytest.raises(InvariantViolation, match="I22: node"):
        allocator.check()


def test_check_finds_a_parent_offered_before_its_children_under_leaf_only() -> None:
    allocator = populated(leaf_only=True)
    parent = next(b for b in range(1, 9) if allocator.pool.children[b] and not allocator.pool.ref[b])
    allocator.pool.candidate[parent] = 1
    with pytest.raises(InvariantViolation, match="I5: block"):
        allocator.check()


def test_check_lists_every_fault_at_once() -> None:
    allocator = populated()
    allocator.pool.used += 1
    allocator.pool.ref[held(allocator)] = 4
    with pytest.raises(InvariantViolation, match=r"PrefixCowAllocator: .*I2: .*; .*I1: "):
        allocator.check()


CONTIGUOUS = [
    ("I1", lambda a: setattr(a, "_free", 1)),
    ("I1", lambda a: setattr(a._runs[1], "first", 3)),
    ("I3", lambda a: a._starts.__setitem__(0, 1) or a._starts.append(1) or a._sizes.append(2)),
    ("I3", lambda a: setattr(a._runs[1], "size", 0)),
    ("I11", lambda a: a._sizes.__setitem__(0, 9)),
    ("I12", lambda a: setattr(a._runs[1], "committed", 100)),
]


@pytest.mark.parametrize(("invariant", "corrupt"), CONTIGUOUS)
def test_check_names_what_is_broken_in_a_contiguous_pool(
    invariant: str, corrupt: Callable[[ContiguousAllocator], None]
) -> None:
    allocator = ContiguousAllocator(num_blocks=8, block_size=2, max_model_len=8)
    admit(allocator, 1, tokens(1, 2, 3))
    allocator.check()
    corrupt(allocator)
    with pytest.raises(InvariantViolation, match=f"{invariant}: "):
        allocator.check()
