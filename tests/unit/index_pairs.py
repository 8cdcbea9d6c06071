"""Two prefix indexes that get the same publications and removals, and must give the same answers."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import xxhash

from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash

POOL = 60
Prompt = tuple[int, ...]


def data_of(tokens: Prompt) -> bytes:
    return array("i", tokens).tobytes()


def prompt_of(draw: Random) -> Prompt:
    """Few stems, few ways to go on: much is shared, and branches are many."""
    stem = (draw.randrange(2),) * draw.randrange(1, 8)
    return stem + tuple(draw.randrange(2) for _ in range(draw.randrange(7)))


class Both:
    """Pools of POOL blocks of one token; hashes have `bits` bits, of which 64 do not collide here."""

    def __init__(self, one: type[PrefixIndex], other: type[PrefixIndex], *, counting: bool, bits: int = 64) -> None:
        self.pools = [BlockPool(POOL, 1), BlockPool(POOL, 1)]
        self.indexes: list[Any] = [one(self.pools[0]), other(self.pools[1])]
        self.bits = bits
        if counting:
            assert not any(pool.children[1] for pool in self.pools)
        self.prefixes: dict[int, Prompt] = {}
        self.free = list(range(1, POOL + 1))

    def hashes(self, prompt: Prompt) -> list[BlockHash]:
        values = [xxhash.xxh64_intdigest(data_of(prompt[: at + 1])) % 2**self.bits for at in range(len(prompt))]
        return [BlockHash(value.to_bytes(9, "little")) for value in values]

    def same(self, method: str, *given: Any) -> Any:
        one, other = (getattr(index, method)(*given) for index in self.indexes)
        assert one == other, (method, given)
        return one

    def find(self, prompt: Prompt) -> list[int]:
        hashes = self.hashes(prompt)
        self.same("count_new", -1, 0, hashes, data_of(prompt))
        return self.same("find", -1, hashes, data_of(prompt), len(hashes))

    def publish(self, prompt: Prompt) -> None:
        found = self.find(prompt)
        first, parent = len(found), found[-1] if found else 0
        rest = prompt[first:][: len(self.free)]
        if not rest:
            return
        blocks, hashes = array("i", [self.free.pop() for _ in rest]), self.hashes(prompt)[first:][: len(rest)]
        self.same("count_new", -1, parent, hashes, data_of(rest))
        answers = []
        for index, pool in zip(self.indexes, self.pools, strict=True):
            holders, new = index.insert_chain(-1, parent, hashes, data_of(rest), blocks)
            answers.append((list(holders), list(new)))
            if new:
                pool.describe_all([blocks[at] for at in new], new, first, 0, 0)
        assert answers[0] == answers[1], prompt
        for at, block in enumerate(blocks):
            if at in answers[0][1]:
                self.prefixes[block] = prompt[: first + at + 1]
            else:
                self.free.append(block)

    def remove(self, blocks: list[int]) -> None:
        self.same("remove_all", blocks)
        self.free += blocks
        for block in blocks:
            del self.prefixes[block]

    def remove_some(self, draw: Random, order: str) -> None:
        """A few blocks: any, or the deepest or shallowest first."""
        most = min(12, len(self.prefixes))
        blocks = draw.sample(sorted(self.prefixes), draw.randrange(1, most + 1))
        if order != "any":
            blocks = sorted(self.prefixes, key=lambda block: (len(self.prefixes[block]), self.prefixes[block]))
            blocks = (blocks[::-1] if order == "deepest first" else blocks)[: draw.randrange(1, 12)]
        self.remove(blocks)

    def agree(self, *, counts: bool) -> None:
        assert self.pools[0].block_hash == self.pools[1].block_hash
        assert self.indexes[0].collisions == self.indexes[1].collisions
        for block in self.prefixes:
            self.same("parent", block)
        if counts:
            assert [index.audit() for index in self.indexes] == [[], []]
            found = [[pool.children[block] for block in sorted(self.prefixes)] for pool in self.pools]
            assert found[0] == found[1]

    def live(self, seed: int, order: str, *, counting: bool) -> None:
        """A history of publications and removals, compared after each, and once more when counted at its end."""
        draw = Random(seed)
        for _ in range(120):
            if draw.random() < 0.6:
                self.publish(prompt_of(draw))
            elif self.prefixes:
                self.remove_some(draw, order)
            self.find(prompt_of(draw))
            self.agree(counts=counting)
        self.agree(counts=True)
