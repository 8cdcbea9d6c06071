"""The bound over groups: no schedule of a short trace exceeds it, and no replay exceeds the best schedule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from groups_plain import LAYOUTS, brute_hit, group
from hybrid_helpers import branching, memories, paths_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import InvalidArgument
from framework.groups.checkpoints import CheckpointRule, Retention
from framework.interfaces.groups import KVGroup, alignment
from framework_cache_only.paths import RequestPaths
from framework_hybrid.optimum import bound_tokens
from framework_hybrid.replay import replay_groups
from framework_hybrid.rules import AtMost, Dense, EveryFew, Junctions, Superseding

RULES: tuple[CheckpointRule, ...] = (
    Dense(),
    Retention(0),
    Retention(12),
    Junctions(),
    EveryFew(4),
    AtMost(3, 4),
    Superseding(),
)


Contents = frozenset[tuple[int, int]]
"""(group, node) of each."""


def optimum_tokens(paths: RequestPaths, groups: tuple[KVGroup, ...], num_bytes: int) -> int:
    """Most tokens that can be hit in all requests together, by search over what could stay after each of them.

    What stays is what some later requests, each at one place, are going to need; all else is of no use.
    """
    walked, prompts, step = list(paths.walk()), paths.input_tokens.tolist(), alignment(groups)
    places = [range(step, prompt, step) for prompt in prompts]
    goals = [[frozenset((g, path[at]) for g, group in enumerate(groups) for at in group.needs(place)) for place in own]
             for path, own in zip(walked, places, strict=True)]  # fmt: skip

    def choices(coming: int, able: Contents, kept: Contents) -> Iterator[Contents]:
        """Every set worth keeping out of `able` for the requests from `coming` on."""
        if coming == len(walked):
            yield kept
            return
        for need in (Contents(), *goals[coming]):
            more = kept | need & able
            if sum(groups[g].block_bytes for g, _ in more) <= num_bytes:
                yield from choices(coming + 1, able, more)

    @cache
    def best(request: int, kept: Contents) -> int:
        if request == len(walked):
            return 0
        path = walked[request]
        have = [{at for at, node in enumerate(path) if (g, node) in kept} for g in range(len(groups))]
        hit = brute_hit(groups, have, prompts[request] - 1)
        able = kept | {(g, node) for g in range(len(groups)) for node in path[hit // step :]}
        return hit + max(best(request + 1, stay) for stay in set(choices(request + 1, able, Contents())))

    return best(0, Contents())


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("full", "window", "state", "chunk", "window alone")), st.integers(6, 40))
def test_no_way_or_rule_hits_more_than_the_optimum_nor_it_more_than_the_bound(
    seed: int, layout: str, blocks: int
) -> None:
    paths, groups = paths_of(branching(7, seed, longest=24)), LAYOUTS.get(layout, (group("window", 10),))
    best, bound = (find(paths, groups, 4 * blocks) for find in (optimum_tokens, bound_tokens))
    assert best <= bound, (best, bound)
    for rule in RULES:
        for way, memory in memories(groups, 4 * blocks, paths).items():
            hits = replay_groups(paths, memory, rule, chunk_tokens=8).hits.sum()
            assert hits <= best, (way, type(rule).__name__, hits, best)


TINY = {
    "full": (group("full", block=1, size=3),),
    "chunk": (group("full", block=1, size=3), group("chunk", 2, block=1, size=1)),
    "window": (group("full", block=1, size=2), group("window", 3, block=1, size=1)),
    "state": (group("full", block=1, size=1), group("state", block=1, size=2)),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=2, max_size=6),
    st.sampled_from(list(TINY)),
    st.integers(1, 9),
)
@example([[0], [0], [0, 0], [1], [1], [0, 0, 1, 0]], "chunk", 5)
def test_a_prompt_that_ends_with_a_block_cannot_hit_it_and_the_bound_holds(
    prompts: list[list[int]], layout: str, num_bytes: int
) -> None:
    paths = paths_of(prompts, 1)
    best, bound = (find(paths, TINY[layout], num_bytes) for find in (optimum_tokens, bound_tokens))
    assert best <= bound, (best, bound)


def test_the_bound_is_tight_where_bytes_are_plenty_and_falls_with_them() -> None:
    paths, groups = paths_of(branching(60, 3)), LAYOUTS["window"]
    plenty = bound_tokens(paths, groups, 10**6)
    assert plenty == (paths.infinite_hits * 4).clip(max=(paths.input_tokens - 1) // 4 * 4).sum()
    found = [bound_tokens(paths, groups, size) for size in (8, 40, 80, 160, 320)]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] <= plenty, found


def test_the_bound_refuses_what_it_does_not_hold_for() -> None:
    paths = paths_of([[1] * 12])
    for groups in ((group("full", drop=True),), (group("full", block=8),)):
        with pytest.raises(InvalidArgument, match="the bound is for"):
            bound_tokens(paths, groups, 100)
