"""The index of runs against the one that knows every block by its hash, answer by answer."""

from __future__ import annotations

import sys

import pytest
from index_pairs import POOL, Both

from framework.paged.index import HashIndex, RunIndex


@pytest.mark.parametrize("counting", [True, False])
@pytest.mark.parametrize("order", ["any", "deepest first", "shallowest first"])
def test_runs_give_the_answers_of_an_index_by_hash(order: str, counting: bool) -> None:
    for seed in range(5):
        both = Both(RunIndex, HashIndex, counting=counting)
        both.live(seed, order, counting=counting)
        index = both.indexes[0]
        both.remove(sorted(both.prefixes))
        assert not index._heads, "runs without blocks stay behind"
        assert not index._branches
        assert not index._absent


def test_a_prompt_is_one_run_and_a_shared_stem_has_a_branch_each() -> None:
    both = Both(RunIndex, HashIndex, counting=False)
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
    both = Both(RunIndex, HashIndex, counting=False)
    both.publish((0,) * POOL)
    index = both.indexes[0]
    kept = index._run_of[both.find((0,) * POOL)[-1]]
    for block in both.find((0,) * POOL)[:-1]:
        both.remove([block])
        assert [*index._heads.values()] == [kept]


def test_what_the_index_keeps_of_a_long_prompt_is_a_dozen_bytes_a_block() -> None:
    both = Both(RunIndex, HashIndex, counting=False)
    both.publish((0,) * POOL)
    index = both.indexes[0]
    run = index._run_of[1]
    assert sys.getsizeof(run.blocks) <= 64 + 5 * POOL
    assert (sys.getsizeof(index._run_of), len(index._heads)) == (56 + 8 * (POOL + 1), 1)
