"""Orders that upstream threads propose: each evicts what its thread says."""

from __future__ import annotations

import pytest
from learning_streams import requests_of

from framework.errors import InvalidArgument
from framework.replay.reference import replay
from framework_builtin.eviction.proposed import DensestInterior, HitsPerToken, Lease, NeverHitFirst


def evicted(policy, prompts: list[list[int]], num_blocks: int) -> list[int]:
    """Names of the evicted blocks, in order."""
    paths = requests_of([(float(at), ids) for at, ids in enumerate(prompts)])
    names = {
        node: ids[depth] for ids, path in zip(prompts, paths.walk(), strict=True) for depth, node in enumerate(path)
    }
    gone: list[int] = []
    replay(paths, policy, num_blocks, on_evict=lambda _, node: gone.append(names[node]))
    return gone


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (NeverHitFirst(), [31, 30]),  # 10 was hit; those behind are younger
        (Lease(5), [31, 30]),  # 10's lease ends at 7; 30 was used at 3 and has none
        (Lease(0), [10, 31]),  # least recently used
        (HitsPerToken(), [31, 30]),  # a stretch of two without a hit, deepest first; 10: one hit for one block
    ],
)
def test_what_was_hit_stays_as_long_as_the_rule_says(policy, expected: list[int]) -> None:
    assert evicted(policy, [[10], [10], [30, 31], [40], [50]], 3)[: len(expected)] == expected


def test_the_densest_interior_goes_first_and_the_ends_stay() -> None:
    found = evicted(DensestInterior(), [[0, 1, 2, 3, 4, 5, 6], *([100 + at] for at in range(7))], 7)
    assert found == [5, 3, 1, 2, 4, 6, 0] or found[:5] == [5, 3, 1, 2, 4], found
    assert set(found[5:]) == {0, 6}


def test_a_lease_is_not_negative() -> None:
    with pytest.raises(InvalidArgument, match="length"):
        Lease(-1)
