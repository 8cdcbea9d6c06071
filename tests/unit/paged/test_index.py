"""The prefix index against a dictionary of whole prefixes."""

from __future__ import annotations

from array import array
from random import Random as Draw

import pytest
import xxhash

from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash

ANCHORS = (-1, -2)


def key(anchor: int, prefix: tuple[int, ...], bits: int) -> BlockHash:
    """A chained name of so many bits; 64 do not collide here."""
    value = xxhash.xxh64_intdigest(repr((anchor, prefix)).encode()) % 2**bits
    return BlockHash(value.to_bytes(9, "little"))


class Contents:
    """A pool, an index and a dictionary that says which block holds which prefix."""

    def __init__(self, *, compares: bool, bits: int = 64) -> None:
        self.pool = BlockPool(12, 1)
        self.index = PrefixIndex(self.pool, compares_tokens=compares)
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
        """What is found already, then the rest in one call: its first collision ends it."""
        found = self.expected(anchor, tokens)
        rest = range(len(found), min(len(tokens), len(found) + len(self.free)))
        if not rest:
            return
        prefixes = [tokens[: at + 1] for at in rest]
        names = [key(anchor, prefix, self.bits) for prefix in prefixes]
        data = b"".join(tokens[at].to_bytes(4, "little") for at in rest)
        parent, blocks = found[-1] if found else 0, array("i", self.free[: len(rest)])
        taken = self.index.count_new(anchor, parent, names, data)
        holders, places = self.index.insert_chain(anchor, parent, names, data, blocks)
        held = [self.where.get((anchor, prefix)) for prefix in prefixes[: len(holders)]]
        assert [*places] == [at for at, block in enumerate(held) if block is None]
        assert [*holders] == [block or blocks[at] for at, block in enumerate(held)]
        assert taken == next((at for at, block in enumerate(held) if block), len(held))
        for at in places:
            self.where[anchor, prefixes[at]] = blocks[at]
            self.free.remove(blocks[at])

    def evict(self, *which: tuple[int, tuple[int, ...]]) -> None:
        blocks = [self.where.pop(each) for each in which]
        self.index.remove(blocks)
        self.free += blocks


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("compares", "bits"), [(False, 64), (True, 64), (True, 2), (True, 0)])
def test_the_index_finds_exactly_what_is_published(
    compares: bool, bits: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.paged.index.MANY", 1 if at_once else 100)
    for seed in range(30):
        draw, contents = Draw(seed), Contents(compares=compares, bits=bits)
        for _ in range(120):
            anchor = draw.choice(ANCHORS)
            tokens = tuple(draw.randint(0, 1) for _ in range(draw.randint(1, 5)))
            if draw.random() < 0.5:
                contents.publish(anchor, tokens)
            elif contents.where:
                deepest_first = sorted(contents.where, key=lambda which: (-len(which[1]), which))
                some = {draw.randrange(len(deepest_first)) for _ in range(draw.randint(1, 4))}
                contents.evict(*(deepest_first[at] for at in sorted(some, reverse=draw.random() < 0.3)))
            assert contents.find(anchor, tokens) == contents.expected(anchor, tokens)
            assert not contents.index.audit(), contents.index.audit()
        if bits == 64:
            assert not contents.index.collisions
        contents.evict(*sorted(contents.where))
        assert not contents.index.audit()
        assert not [*contents.index.nodes()], "ghosts without descendants stay behind"
        assert not contents.index._ghosts


@pytest.mark.parametrize("at_once", [True, False])
def test_content_whose_parent_is_gone_is_published_once_and_found_by_its_name(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.paged.index.MANY", 1 if at_once else 100)
    pool = BlockPool(20, 1)
    index = PrefixIndex(pool, compares_tokens=False)
    names = [BlockHash(bytes([n])) for n in range(1, 11)]
    index.insert_chain(-1, 0, names[:3], b"", array("i", [1, 2, 3]))
    assert [*index.insert_chain(0, 0, names[2:5], b"", array("i", [11, 4, 5]))[0]] == [3, 4, 5], "3 has its parents"
    assert [*index.insert_chain(0, 0, names[7:], b"", array("i", [8, 9, 10]))[0]] == [8, 9, 10], (
        "nothing above is there"
    )
    assert not index.audit()
    assert index.find(-1, names, b"", 10) == [1, 2, 3, 4, 5]
    holders, _ = index.insert_chain(-1, 5, names[5:], b"", array("i", [6, 7, 12, 13, 14]))
    assert [*holders] == [6, 7, 8, 9, 10]
    assert not index.audit()
    index.remove([10, 9, 8])
    index.remove([7, 6, 5, 4, 3, 2, 1])
    assert not index.audit()
    assert not [*index.nodes()]
