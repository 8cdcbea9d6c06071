"""The index of runs of tokens against the trie of single contents, answer by answer, collisions included."""

from __future__ import annotations

import pytest
from index_pairs import POOL, Both

from framework.paged.index import TokenRunIndex, TrieIndex


@pytest.mark.parametrize("bits", [64, 2, 0])
@pytest.mark.parametrize("counting", [True, False])
@pytest.mark.parametrize("order", ["any", "deepest first", "shallowest first"])
def test_runs_of_tokens_give_the_answers_of_a_trie(order: str, counting: bool, bits: int) -> None:
    collisions = 0
    for seed in range(3):
        both = Both(TokenRunIndex, TrieIndex, counting=counting, bits=bits)
        both.live(seed, order, counting=counting)
        index = both.indexes[0]
        collisions += index.collisions
        both.remove(sorted(both.prefixes))
        assert not index._heads, "ghosts without descendants stay behind"
        assert index.audit() == []
    assert (collisions > 0) == (bits < 64)


def test_a_prompt_is_one_run_and_ghosts_stay_in_it() -> None:
    both = Both(TokenRunIndex, TrieIndex, counting=False)
    index = both.indexes[0]
    both.publish((0, 0, 0, 0, 1, 1))
    both.publish((0, 0, 0, 0, 1, 1, 1))
    assert [len(run.blocks) for run in index._heads.values()] == [7], "a prompt that goes on lengthens its run"
    both.publish((0, 0, 0, 0, 2, 2))
    both.publish((0, 0, 0, 0, 3))
    assert [len(run.blocks) for run in index._heads.values()] == [7, 2, 1]
    found = both.find((0, 0, 0, 0, 1, 1, 1))
    both.remove([found[1], found[3]])
    assert [sorted(run.ghosts) for run in index._heads.values()] == [[1, 3], [], []]
    both.remove(found[:3:-1])
    assert [len(run.blocks) for run in index._heads.values()] == [4, 2, 1], "a ghost that runs begin below stays"
    both.remove(both.find((0,)))
    both.remove([block for block, prefix in both.prefixes.items() if len(prefix) > 3])
    assert [len(run.blocks) for run in index._heads.values()] == [3], "ghosts go with their last descendant"


def test_tokens_are_kept_once_a_block() -> None:
    both = Both(TokenRunIndex, TrieIndex, counting=False)
    both.publish((0,) * POOL)
    index = both.indexes[0]
    assert [len(run.data) for run in index._heads.values()] == [4 * POOL]
    both.remove(both.find((0,) * POOL)[:9:-1])
    assert [len(run.data) for run in index._heads.values()] == [40]
