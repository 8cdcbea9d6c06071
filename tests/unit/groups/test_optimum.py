"""The optimum over groups: exact against all choices on short traces, its bound, and what no replay exceeds."""

from __future__ import annotations

from functools import cache

import pytest
from groups_plain import LAYOUTS, branching, group, memories, paths_of, subsets
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import InvalidArgument
from framework.groups import optimum
from framework.groups.checkpoints import AtMost, CheckpointRule, Dense, EveryFew, Junctions, Retention, Superseding
from framework.groups.kinds import KVGroup
from framework.groups.replay import replay_groups
from framework.replay.paths import RequestPaths

RULES: tuple[CheckpointRule, ...] = (
    Dense(),
    Retention(0),
    Retention(12),
    Junctions(),
    EveryFew(4),
    AtMost(3, 4),
    Superseding(),
)


def exhaustive(paths: RequestPaths, groups: tuple[KVGroup, ...], num_bytes: int) -> int:
    """The most over every subset of what could stay after every request."""
    trace = optimum._Trace(paths, groups)

    @cache
    def best(request: int, kept: optimum.Contents) -> int:
        if request == paths.num_requests:
            return 0
        hit = trace.hit(request, kept)
        able = trace.after(request, kept, hit)
        stays = (stay for stay in subsets(able) if trace.num_bytes(stay) <= num_bytes)  # type: ignore[arg-type]
        return hit + max(best(request + 1, stay) for stay in stays)  # type: ignore[arg-type]

    return best(0, frozenset())


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("full", "window", "state", "chunk")), st.integers(2, 6))
def test_the_optimum_is_that_of_all_choices(seed: int, layout: str, blocks: int) -> None:
    paths, groups = paths_of(branching(4, seed, longest=9)), LAYOUTS[layout]
    assert optimum.optimum_tokens(paths, groups, 4 * blocks) == exhaustive(paths, groups, 4 * blocks)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("full", "window", "state", "chunk")), st.integers(6, 40))
def test_no_way_or_rule_hits_more_than_the_optimum_nor_it_more_than_the_bound(
    seed: int, layout: str, blocks: int
) -> None:
    paths, groups = paths_of(branching(7, seed, longest=24)), LAYOUTS[layout]
    best, bound = (find(paths, groups, 4 * blocks) for find in (optimum.optimum_tokens, optimum.bound_tokens))
    assert best <= bound, (best, bound)
    for rule in RULES:
        for way, memory in memories(groups, 4 * blocks, paths).items():
            hits = replay_groups(paths, memory, rule, chunk_tokens=8).hits.sum()
            assert hits <= best, (way, type(rule).__name__, hits, best)


def test_a_state_worth_more_than_its_bytes_is_kept_instead_of_kv() -> None:
    groups = (group("full", size=1), group("state", size=5))
    paths = paths_of([[1] * 17, [2] * 9, [1] * 17, [2] * 9])
    assert optimum.optimum_tokens(paths, groups, 9) == 16, "4 blocks and a state of the first"
    assert optimum.optimum_tokens(paths, groups, 8) == 12, "3 blocks and a state of it"
    assert optimum.optimum_tokens(paths, groups, 5) == 0
    assert optimum.optimum_tokens(paths, groups, 16) == 24


def test_the_bound_is_tight_where_bytes_are_plenty_and_falls_with_them() -> None:
    paths, groups = paths_of(branching(60, 3)), LAYOUTS["window"]
    plenty = optimum.bound_tokens(paths, groups, 10**6)
    assert plenty == (paths.infinite_hits * 4).clip(max=(paths.input_tokens - 1) // 4 * 4).sum()
    found = [optimum.bound_tokens(paths, groups, size) for size in (8, 40, 80, 160, 320)]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] <= plenty, found


def test_the_bound_refuses_what_it_does_not_hold_for() -> None:
    paths = paths_of([[1] * 12])
    for groups in ((group("window", 9),), (group("full", drop=True),), (group("full", block=8),)):
        with pytest.raises(InvalidArgument, match="the bound is for"):
            optimum.bound_tokens(paths, groups, 100)
