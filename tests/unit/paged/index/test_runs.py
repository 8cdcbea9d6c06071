"""The index of runs against the one that knows every block by its hash, answer by answer."""

from __future__ import annotations

import sys
from array import array
from random import Random
from typing import Any

import pytest

from framework.paged.index import HashIndex, RunIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash

POOL = 60


def name(prefix: tuple[int, ...]) -> BlockHash:
    return BlockHash(repr(prefix).encode())


class Both:
    """The same publications and removals in a pool with a RunIndex and in one with a HashIndex."""

    def __init__(self, *, counting: bool) -> None:
        self.pools = [BlockPool(POOL, 1), BlockPool(POOL, 1)]
        self.indexes = [RunIndex(self.pools[0]), HashIndex(self.pools[1])]
        if counting:
            assert not any(pool.children[1] for pool in self.pools)
        self.prefixes: dict[int, tuple[int, ...]] = {}
        self.free = list(range(1, POOL + 1))

    def same(self, method: str, *given: Any) -> Any:
        one, other = (getattr(index, method)(*given) for index in self.indexes)
        assert one == other, (method, given)
        return one

    def find(self, prompt: tuple[int, ...]) -> list[int]:
        names = [name(prompt[: at + 1]) for at in range(len(prompt))]
        self.same("count_new", -1, 0, names, b"")
        return self.same("find", -1, names, b"", len(names))

    def publish(self, prompt: tuple[int, ...]) -> None:
        found = self.find(prompt)
        first, parent = len(found), found[-1] if found else 0
        rest = prompt[first:][: len(self.free)]
        if not rest:
            return
        blocks = array("i", [self.free.pop() for _ in rest])
        names = [name(prompt[: first + at + 1]) for at in range(len(rest))]
        self.same("count_new", -1, parent, names, b"")
        answers = []
        for index, pool in zip(self.indexes, self.pools, strict=True):
            holders, new = index.insert_chain(-1, parent, names, b"", blocks)
            answers.append((list(holders), list(new)))
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

    def agree(self) -> None:
        assert self.pools[0].block_hash == self.pools[1].block_hash
        for block in self.prefixes:
            self.same("parent", block)

    def count_alike(self) -> None:
        assert [index.audit() for index in self.indexes] == [[], []]
        counts = [[pool.children[block] for block in sorted(self.prefixes)] for pool in self.pools]
        assert counts[0] == counts[1]


def prompt_of(draw: Random) -> tuple[int, ...]:
    """Few stems, few ways to go on: much is shared, and branches are many."""
    stem = (draw.randrange(2),) * draw.randrange(1, 8)
    return stem + tuple(draw.randrange(2) for _ in range(draw.randrange(7)))


@pytest.mark.parametrize("counting", [True, False])
@pytest.mark.parametrize("order", ["any", "deepest first", "shallowest first"])
def test_runs_give_the_answers_of_an_index_by_hash(order: str, counting: bool) -> None:
    waited = 0
    for seed in range(12):
        draw, both = Random(seed), Both(counting=counting)
        for _ in range(120):
            if draw.random() < 0.6:
                both.publish(prompt_of(draw))
            elif both.prefixes:
                blocks = draw.sample(sorted(both.prefixes), draw.randrange(1, min(12, len(both.prefixes)) + 1))
                if order != "any":
                    blocks = sorted(both.prefixes, key=lambda block: (len(both.prefixes[block]), both.prefixes[block]))
                    blocks = (blocks[::-1] if order == "deepest first" else blocks)[: draw.randrange(1, 12)]
                both.remove(blocks)
            both.find(prompt_of(draw))
            both.agree()
            waited += len(both.indexes[0]._absent)
            if counting:
                both.count_alike()
        both.count_alike()
        both.remove(sorted(both.prefixes))
        assert not both.indexes[0]._heads, "runs without blocks stay behind"
        assert not both.indexes[0]._branches
        assert not both.indexes[0]._absent
    assert waited or order == "deepest first"


def test_a_prompt_is_one_run_and_a_shared_stem_has_a_branch_each() -> None:
    both = Both(counting=False)
    index = both.indexes[0]
    both.publish((0, 0, 0, 0, 1, 1))
    both.publish((0, 0, 0, 0, 1, 1, 1))
    assert [len(run.blocks) for run in index._heads.values()] == [7], "a prompt that goes on lengthens its run"
    both.publish((0, 0, 0, 0, 2, 2))
    both.publish((0, 0, 0, 0, 3))
    assert [len(run.blocks) for run in index._heads.values()] == [7, 2, 1]
    assert [branch.runs for branch in index._branches.values()] == [2]
    middle = both.find((0, 0, 0))[-1]
    both.remove([middle])
    assert [len(run.blocks) for run in index._heads.values()] == [2, 2, 1, 4], "a run that lost its middle is two"


def test_a_run_without_its_first_blocks_is_not_copied_block_by_block() -> None:
    """The smaller part of a parted run moves: evicting a prompt from its beginning moves none."""
    both = Both(counting=False)
    both.publish((0,) * POOL)
    index = both.indexes[0]
    kept = index._run_of[both.find((0,) * POOL)[-1]]
    for block in both.find((0,) * POOL)[:-1]:
        both.remove([block])
        assert index._heads == {name((0,) * (POOL - len(kept.blocks) + 1)): kept}


def test_what_the_index_keeps_of_a_long_prompt_is_a_dozen_bytes_a_block() -> None:
    both = Both(counting=False)
    both.publish((0,) * POOL)
    index = both.indexes[0]
    run = index._run_of[1]
    assert sys.getsizeof(run.blocks) <= 64 + 5 * POOL
    assert (sys.getsizeof(index._run_of), len(index._heads)) == (56 + 8 * (POOL + 1), 1)
