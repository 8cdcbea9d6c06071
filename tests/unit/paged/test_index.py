"""The prefix index against a dictionary of whole prefixes."""

from __future__ import annotations

from array import array
from itertools import takewhile
from random import Random as Draw

import pytest
import xxhash

from framework.errors import InvalidArgument
from framework.paged.index import BlockHasher, BlockHashes, PrefixIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash, Namespace
from framework_builtin.hash.sha256 import Sha256

ANCHORS = (-1, -2)
Prefix = tuple[int, tuple[int, ...]]
"""An anchor, and tokens."""


def key(anchor: int, prefix: tuple[int, ...], bits: int) -> BlockHash:
    """A chained name of so many bits; 64 do not collide here."""
    value = xxhash.xxh64_intdigest(repr((anchor, prefix)).encode()) % 2**bits
    return BlockHash(value.to_bytes(9, "little"))


class Contents:
    """A pool, an index and a dictionary that says which blocks hold which prefix, the one published first ahead."""

    def __init__(self, *, compares: bool, bits: int = 64, duplicates: bool = False) -> None:
        self.pool = BlockPool(12, 1)
        self.index = PrefixIndex(self.pool, compares_tokens=compares, keeps_duplicates=duplicates)
        self.bits, self.duplicates = bits, duplicates
        self.where: dict[Prefix, list[int]] = {}
        self.free = list(range(1, 13))

    def find(self, anchor: int, tokens: tuple[int, ...]) -> list[int]:
        keys = [key(anchor, tokens[: n + 1], self.bits) for n in range(len(tokens))]
        data = b"".join(token.to_bytes(4, "little") for token in tokens)
        return self.index.find(anchor, keys, data, len(tokens))

    def expected(self, anchor: int, tokens: tuple[int, ...]) -> list[int]:
        prefixes = [(anchor, tokens[: n + 1]) for n in range(len(tokens))]
        return [self.where[prefix][0] for prefix in takewhile(self.where.__contains__, prefixes)]

    def publish(self, anchor: int, tokens: tuple[int, ...]) -> None:
        """What is found already, then the rest in one call: its first collision ends it. Duplicates: all of it."""
        found = [] if self.duplicates else self.expected(anchor, tokens)
        rest = range(len(found), min(len(tokens), len(found) + len(self.free)))
        if not rest:
            return
        prefixes = [(anchor, tokens[: at + 1]) for at in rest]
        names = [key(*prefix, self.bits) for prefix in prefixes]
        data = b"".join(tokens[at].to_bytes(4, "little") for at in rest)
        parent, blocks = found[-1] if found else 0, array("i", self.free[: len(rest)])
        taken = self.index.count_new(anchor, parent, names, data)
        holders, places = self.index.insert_chain(anchor, parent, names, data, blocks)
        held = [self.where[prefix][0] if prefix in self.where else 0 for prefix in prefixes[: len(holders)]]
        if self.duplicates:
            held = [0] * len(rest)
        else:
            assert taken == next((at for at, block in enumerate(held) if block), len(held))
        assert [*places] == [at for at, block in enumerate(held) if not block]
        assert [*holders] == [block or blocks[at] for at, block in enumerate(held)]
        for at in places:
            self.where.setdefault(prefixes[at], []).append(blocks[at])
            self.free.remove(blocks[at])

    def blocks(self) -> list[tuple[Prefix, int]]:
        return sorted((prefix, block) for prefix, blocks in self.where.items() for block in blocks)

    def evict(self, *which: tuple[Prefix, int]) -> None:
        for prefix, block in which:
            self.where[prefix].remove(block)
            if not self.where[prefix]:
                del self.where[prefix]
        self.index.remove([block for _, block in which])
        self.free += [block for _, block in which]

    def check_tree(self) -> None:
        """Blocks hang below the first that holds the prefix before, which counts the children of all that hold it."""
        for (anchor, tokens), block in self.blocks():
            assert self.index.parent(block) == self.where.get((anchor, tokens[:-1]), [0])[0]
            first = self.where[anchor, tokens][0] == block
            below = sum((other, longer[:-1]) == (anchor, tokens) for (other, longer), _ in self.blocks())
            assert self.pool.children[block] == below * first, (block, list(self.pool.children))


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("compares", "bits", "duplicates"),
    [(False, 64, False), (False, 64, True), (True, 64, False), (True, 2, False), (True, 0, False)],
)
def test_the_index_finds_exactly_what_is_published(
    compares: bool, bits: int, duplicates: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.paged.index.MANY", 1 if at_once else 100)
    for seed in range(30):
        draw, contents = Draw(seed), Contents(compares=compares, bits=bits, duplicates=duplicates)
        for _ in range(120):
            anchor = draw.choice(ANCHORS)
            tokens = tuple(draw.randint(0, 1) for _ in range(draw.randint(1, 5)))
            if draw.random() < 0.5:
                contents.publish(anchor, tokens)
            elif contents.where:
                deepest_first = sorted(contents.blocks(), key=lambda which: (-len(which[0][1]), which))
                some = {draw.randrange(len(deepest_first)) for _ in range(draw.randint(1, 4))}
                contents.evict(*(deepest_first[at] for at in sorted(some, reverse=draw.random() < 0.3)))
            assert contents.find(anchor, tokens) == contents.expected(anchor, tokens)
            assert not contents.index.audit(), contents.index.audit()
            if duplicates:
                contents.check_tree()
        if bits == 64:
            assert not contents.index.collisions
        contents.evict(*contents.blocks())
        assert not contents.index.audit()
        assert not [*contents.index.nodes()], "ghosts without descendants stay behind"
        assert not contents.index._ghosts


def test_hashes_of_another_namespace_are_refused_by_value():
    spaces = Namespace(), Namespace(salt="x")
    hasher = BlockHasher(Sha256(), 4)
    hasher.check(BlockHashes.of(spaces[0], [b"x"]), Namespace())
    for made_for, used_in in (spaces, spaces[::-1]):
        with pytest.raises(InvalidArgument, match="was used in"):
            hasher.check(BlockHashes.of(made_for, [b"x"]), used_in)
