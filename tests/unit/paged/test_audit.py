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
    return allocator.tables[RequestId(1)].blocks[0]


def cached(allocator: PagedAllocator) -> int:
    return next(b for b in range(1, 9) if allocator.pool.block_hash[b] is not None and not allocator.pool.ref[b])


def set_column(name: str, which: Callable[[PagedAllocator], int], value: object) -> Callable[[PagedAllocator], None]:
    def corrupt(allocator: PagedAllocator) -> None:
        getattr(allocator.pool, name)[which(allocator)] = value

    return corrupt


def row(allocator: PagedAllocator) -> Any:
    return allocator.tables[RequestId(1)]


def swap_the_published_blocks(allocator: PagedAllocator) -> None:
    blocks = row(allocator).blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]


def leave_a_stale_entry(allocator: PagedAllocator) -> None:
    """The block went back to the free set, its hash still finds it."""
    block = cached(allocator)
    allocator.pool.block_hash[block] = None
    allocator.pool.candidate[block] = 0
    allocator.pool.set_free([block])


CORRUPTIONS: list[tuple[str, Callable[[PagedAllocator], object]]] = [
    ("I1", lambda a: a.pool.free.pop()),
    ("I1", lambda a: setattr(a.pool, "used", a.pool.used + 1)),
    ("I2", set_column("ref", held, 2)),
    ("I3", lambda a: a.pool.free.append(a.pool.free[0])),
    ("I3", set_column("slot", lambda a: a.pool.free[0], 2)),
    ("I5", lambda a: a.pool.set_free([held(a)])),
    ("I5", lambda a: a.pool.set_free([cached(a)])),
    ("I5", set_column("candidate", held, 1)),
    ("I5", set_column("candidate", cached, 0)),
    ("I6", set_column("ref", held, -1)),
    ("I6", set_column("ref", held, 5)),
    ("I8", lambda a: a.tables.update({RequestId(2): a.tables.pop(RequestId(1))})),
    ("I11", lambda a: row(a).blocks.__setitem__(2, 9)),
    ("I11", lambda a: row(a).blocks.__setitem__(2, 0)),
    ("I12", lambda a: row(a).blocks.__setitem__(2, row(a).blocks[1])),
    ("I12", lambda a: setattr(row(a), "committed", 7)),
    ("I16", lambda a: a.pool.set_free([0])),
    ("I16", set_column("block_hash", lambda _: 0, b"null")),
    ("I20", set_column("block_hash", held, None)),
    ("I20", leave_a_stale_entry),
    ("I20", set_column("block_hash", cached, b"another name")),
    ("I20", set_column("children", held, 7)),
    ("I21", lambda a: setattr(row(a), "committed", 3)),
    ("I22", swap_the_published_blocks),
    ("I22", set_column("depth", held, 4)),
    ("I28", lambda a: a.pool.ref.__setitem__(held(a), 0)),  # the table lost its first block, whose child it still uses
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


def lead_to_the_wrong_block(allocator: PagedAllocator) -> None:
    index = allocator.cache.index
    index._block[index._node[held(allocator)]] = cached(allocator)


def keep_a_ghost_that_nothing_needs(allocator: PagedAllocator) -> None:
    index = allocator.cache.index
    index._floating[b"gone"] = node = index._unused.pop()
    index._ghosts[node] = b"gone"


def know_a_content_as_a_ghost(allocator: PagedAllocator) -> None:
    index = allocator.cache.index
    index._ghosts[index._node[held(allocator)]] = allocator.pool.block_hash[held(allocator)]


def damage(column: str, value: int) -> Callable[[PagedAllocator], None]:
    def corrupt(allocator: PagedAllocator) -> None:
        index = allocator.cache.index
        getattr(index, column)[index._node[held(allocator)]] = value

    return corrupt


def put_a_node_below_nothing(allocator: PagedAllocator) -> None:
    index = allocator.cache.index
    index._above[next(node for node, _ in index.nodes() if index._above[node] > 0)] = 999


def offer_a_parent(allocator: PagedAllocator) -> None:
    parent = next(b for b in range(1, 9) if allocator.pool.children[b] and not allocator.pool.ref[b])
    allocator.pool.candidate[parent] = 1


def break_two_rules(allocator: PagedAllocator) -> None:
    allocator.pool.used += 1
    allocator.pool.ref[held(allocator)] = 4


@pytest.mark.parametrize(
    ("options", "corrupt", "says"),
    [
        ({}, lead_to_the_wrong_block, "I20: the index finds block"),
        ({}, keep_a_ghost_that_nothing_needs, "I20: .* ghost"),
        ({"hash": Xxh64()}, know_a_content_as_a_ghost, "I20: .* ghost"),
        ({"kind": RadixAllocator}, damage("_above", 77), "I20: "),
        ({"kind": RadixAllocator}, damage("_kids", 5), "I20: "),
        ({"kind": RadixAllocator}, damage("_resident", 5), "I20: "),
        ({"kind": RadixAllocator}, put_a_node_below_nothing, "I22: node"),
        ({"leaf_only": True}, offer_a_parent, "I5: block"),
        ({}, break_two_rules, r"PrefixCowAllocator: .*I2: .*; .*I1: "),
    ],
)
def test_check_says_what_is_broken_in_an_index_or_in_two_places(
    options: Any, corrupt: Callable[[PagedAllocator], None], says: str
) -> None:
    allocator = populated(**options)
    corrupt(allocator)
    with pytest.raises(InvariantViolation, match=says):
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
