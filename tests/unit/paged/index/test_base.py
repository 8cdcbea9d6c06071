"""Both forms of the prefix index against a dictionary of whole prefixes."""

from __future__ import annotations

from array import array
from random import Random as Draw

import pytest
import xxhash

from framework.paged.index import HashIndex, PrefixIndex, RunIndex, TokenRunIndex, TrieIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash

ANCHORS = (-1, -2)


def key(anchor: int, prefix: tuple[int, ...], bits: int) -> BlockHash:
    """A chained name of so many bits; 64 do not collide here."""
    value = xxhash.xxh64_intdigest(repr((anchor, prefix)).encode()) % 2**bits
    return BlockHash(value.to_bytes(9, "little"))


class Contents:
    """A pool, an index and a dictionary that says which block holds which prefix."""

    def __init__(self, form: type[PrefixIndex], bits: int) -> None:
        self.pool = BlockPool(12, 1)
        self.index = form(self.pool)
        self.bits = bits
        self.where: dict[tuple[int, tuple[int, ...]], int] = {}
        self.free = list(range(1, 13))

    def find(self, anchor: int, tokens: tuple[int, ...]) -> list[int]:
        keys = [key(anchor, tokens[: n + 1], self.bits) for n in range(len(tokens))]
        data = b"".join(token.to_bytes(4, "little") for token in tokens)
        return self.index.find(anchor, keys, data, len(tokens))

    def expected(self, anchor: int, tokens: tuple[int, ...]) -> list[int]:
        found = []
        for n in range(len(tokens)):
            if (anchor, tokens[: n + 1]) not in self.where:
                break
            found.append(self.where[anchor, tokens[: n + 1]])
        return found

    def publish(self, anchor: int, tokens: tuple[int, ...]) -> None:
        parent = 0
        for n in range(len(tokens)):
            prefix = tokens[: n + 1]
            holder = self.where.get((anchor, prefix))
            if holder is None:
                if not self.free:
                    return
                name, block = key(anchor, prefix, self.bits), self.free[-1]
                holder = self.index.insert(anchor, parent, name, tokens[n].to_bytes(4, "little"), block)
                if not holder:
                    return
                assert holder == block
                self.pool.block_hash[block] = name
                self.where[anchor, prefix] = self.free.pop()
            parent = holder

    def evict(self, which: tuple[int, tuple[int, ...]]) -> None:
        block = self.where.pop(which)
        self.index.remove(block)
        self.pool.block_hash[block] = None
        self.free.append(block)


@pytest.mark.parametrize(
    ("form", "bits"),
    [(HashIndex, 64), (RunIndex, 64), *((form, bits) for form in (TrieIndex, TokenRunIndex) for bits in (64, 2, 0))],
)
def test_the_index_finds_exactly_what_is_published(form: type[PrefixIndex], bits: int) -> None:
    for seed in range(30):
        draw, contents = Draw(seed), Contents(form, bits)
        for _ in range(120):
            anchor = draw.choice(ANCHORS)
            tokens = tuple(draw.randint(0, 1) for _ in range(draw.randint(1, 5)))
            if draw.random() < 0.5:
                contents.publish(anchor, tokens)
            elif contents.where:
                contents.evict(draw.choice(sorted(contents.where)))
            assert contents.find(anchor, tokens) == contents.expected(anchor, tokens)
            assert not contents.index.audit(), contents.index.audit()
        if bits == 64:
            assert not contents.index.collisions
        for which in sorted(contents.where):
            contents.evict(which)
        assert not contents.index.audit()
        if isinstance(contents.index, TrieIndex):
            assert not contents.index._nodes, "ghosts without descendants stay behind"
        elif isinstance(contents.index, TokenRunIndex):
            assert not contents.index._heads, "ghosts without descendants stay behind"
        elif isinstance(contents.index, RunIndex):
            assert not contents.index._heads
            assert not contents.index._absent, "parents stay behind that nobody waits for"
        else:
            assert not contents.index._orphans


@pytest.mark.parametrize("form", [TrieIndex, TokenRunIndex])
def test_ghosts_keep_their_tokens_so_no_other_content_takes_their_place(form: type[PrefixIndex]) -> None:
    contents = Contents(form, 0)
    contents.publish(-1, (0, 0, 0))
    deepest = contents.where[-1, (0, 0, 0)]
    contents.evict((-1, (0,)))
    contents.evict((-1, (0, 0)))
    contents.publish(-1, (1, 0, 0))
    assert contents.find(-1, (1, 0, 0)) == []
    assert contents.index.collisions == 1
    contents.publish(-1, (0, 0))
    assert contents.find(-1, (0, 0, 0))[-1] == deepest


def test_equal_content_is_held_once() -> None:
    for form in (HashIndex, RunIndex, TokenRunIndex, TrieIndex):
        contents = Contents(form, 64)
        contents.publish(-1, (0, 1))
        held = contents.where[-1, (0, 1)]
        name = key(-1, (0, 1), 64)
        assert contents.index.insert(-1, contents.where[-1, (0,)], name, (1).to_bytes(4, "little"), 12) == held
        assert contents.pool.children[contents.where[-1, (0,)]] == 1
        assert not contents.index.audit()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("form", [HashIndex, RunIndex])
def test_children_counted_late_are_those_counted_from_the_start(form: type[PrefixIndex], early: bool) -> None:
    pool = BlockPool(8, 1)
    index = form(pool)
    if early:
        assert not any(pool.children)
    names = [BlockHash(bytes([n])) for n in range(1, 6)]
    index.insert_chain(-1, 0, names[:3], b"", array("i", [1, 2, 3]))
    pool.describe_all([1, 2, 3], [0, 1, 2], 0, 0, 0)
    index.insert_chain(-1, 2, names[3:], b"", array("i", [4, 5]))  # a second branch below block 2
    pool.describe_all([4, 5], [0, 1], 2, 0, 0)
    index.remove_all([1])  # an ancestor goes first: its child waits for it
    view = pool.view().children
    assert [view[block] for block in (2, 3, 4, 5)] == [2, 0, 1, 0], list(view)
    assert index.insert(-1, 0, names[0], b"", 7) == 7
    pool.block_hash[7] = names[0]
    assert view[7] == 1, list(view)
    index.remove_all([3, 5, 4])
    assert view[2] == 0, list(view)
    assert index.audit() == []
