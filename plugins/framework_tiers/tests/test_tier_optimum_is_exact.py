"""The optimum over tiers against exhaustive search, and every rule and policy against it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations

import pytest
from replay_helpers import random_requests, workload

from framework import registry
from framework.errors import InvalidArgument
from framework_builtin.eviction.belady import Belady
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.reference import replay
from framework_tiers.counted import CountedTiers
from framework_tiers.optimum import shares_of_best, tier_optima, value
from framework_tiers.rules import Never, OnEviction, OnSecondHit, WriteThrough
from framework_tiers.tiering import Tiering

Node = tuple[int, ...]
Tiers = tuple[frozenset[Node], ...]
WEIGHTS = [(1, 1, 1), (2, 1, 0), (1, 0, 0), (9, 5, 4)]
"""What a hit in each tier is worth, the pool first."""


def best_value(requests: Sequence[Sequence[int]], sizes: Sequence[int], weights: Sequence[int], *, pinned: bool) -> int:
    """The most that any schedule's hits are worth, by trying all.

    Content enters the pool by being requested, and moves down freely.
    """
    best: dict[Tiers, int] = {(frozenset(),) * len(sizes): 0}
    for prompt in requests:
        path = [tuple(prompt[: depth + 1]) for depth in range(len(prompt))]
        coming: dict[Tiers, int] = {}
        for tiers, so_far in best.items():
            worth = so_far
            for node in path:
                place = next((number for number, held in enumerate(tiers) if node in held), None)
                if place is None:
                    break
                worth += weights[place]
            for after in placements(tiers, path, sizes, pinned):
                coming[after] = max(coming.get(after, 0), worth)
        best = coming
    return max(best.values())


def placements(tiers: Tiers, path: Sequence[Node], sizes: Sequence[int], pinned: bool) -> Iterator[Tiers]:
    """All that may lie in the tiers while and after a request of this path runs; as much as there is room for.

    Pinned, its first blocks are in the pool, and what is in no tier comes by way of the pool.
    """
    held = frozenset(path[: sizes[0]] if pinned else ())
    entering = held if pinned else frozenset(path)
    for pool in filled(held, (tiers[0] | set(path)) - held, sizes[0]):
        yield from lower(entering | tiers[0], (pool,), tiers, path, sizes)


def lower(
    above: frozenset[Node], made: Tiers, tiers: Tiers, path: Sequence[Node], sizes: Sequence[int]
) -> Iterator[Tiers]:
    """The tiers below those that are made: each may take what was in it or above it, and what was requested."""
    number = len(made)
    if number == len(sizes):
        yield made
        return
    requested = frozenset(path).intersection(frozenset().union(*tiers))
    reach = above | tiers[number]
    for content in filled(frozenset[Node](), (reach | requested).difference(*made), sizes[number]):
        yield from lower(reach, (*made, content), tiers, path, sizes)


def filled(own: frozenset[Node], others: frozenset[Node], size: int) -> Iterator[frozenset[Node]]:
    """`own` and as many of the others as there is room for."""
    for more in combinations(sorted(others), min(len(others), size - len(own))):
        yield own.union(more)


def instances(count: int, longest: int, num_tiers: int) -> Iterator[tuple[list[list[int]], list[int]]]:
    for seed in range(count):
        draw = random.Random(seed)
        requests = random_requests(seed, draw.randint(3, 7), width=2, longest=longest)
        yield requests, [draw.randint(1, 3) for _ in range(num_tiers)]


@pytest.mark.parametrize("num_tiers", [2, 3])
def test_the_optimum_over_tiers_is_the_best_of_all_schedules_at_every_weight(num_tiers: int) -> None:
    for requests, sizes in instances(12 if num_tiers == 2 else 6, 3 if num_tiers == 2 else 2, num_tiers):
        best = tier_optima(workload(requests), sizes, pinned=False)
        for weights in WEIGHTS:
            found = best_value(requests, sizes, weights, pinned=False)
            assert found == value(best, weights[:num_tiers]), (requests, sizes, weights)


def test_the_pinned_optimum_is_exact_where_requests_fit_in_the_pool_and_a_bound_elsewhere() -> None:
    exact = below = 0
    for requests, sizes in instances(25, 3, 2):
        best = tier_optima(workload(requests), sizes, pinned=True)
        for weights in WEIGHTS:
            found, bound = best_value(requests, sizes, weights, pinned=True), value(best, weights[:2])
            if max(map(len, requests)) <= sizes[0]:
                assert found == bound, (requests, sizes, weights)
            assert found <= bound, (requests, sizes, weights)
            exact += found == bound > 0
            below += found < bound
    assert exact > 20, "attained"
    assert below > 0, "not everywhere: a request longer than the pool holds more there than it can"


RULES: list[Tiering] = [Never(), OnEviction(), OnEviction(exclusive=False), WriteThrough(), OnSecondHit()]


@pytest.mark.parametrize("name", ["lru", "arc", "belady", "hazard"])
def test_no_rule_and_no_policy_hits_more_than_the_optimum_over_tiers(name: str) -> None:
    for seed in range(3):
        draw = random.Random(seed)
        requests = random_requests(seed, 60, width=3, longest=6)
        sizes = [draw.randint(1, 12) for _ in range(draw.randint(2, 4))]
        paths = workload(requests)
        for rule in RULES:
            made = [registry.build("eviction", name, {}, {"num_blocks": size, "seed": 0}) for size in sizes]
            below = CountedTiers(paths, list(zip(sizes[1:], made[1:], strict=True)), rule)
            replay(paths, made[0], sizes[0], below=below)
            hits = list(accumulate(below.tier_hits.sum(axis=0).tolist()))
            for pinned in (True, False):
                best = accumulate(tier_optima(paths, sizes, pinned=pinned))
                assert all(ours <= most for ours, most in zip(hits, best, strict=True)), (seed, sizes, rule)


def test_a_request_longer_than_the_pool_leaves_the_tiers_to_others() -> None:
    """One cache of both sizes would have to hold all of it, and is no bound."""
    paths = workload([[1, 2], [5, 6, 7, 8], [1, 2]])
    below = CountedTiers(paths, [(2, Belady())], OnEviction())
    assert replay(paths, Belady(), 2, below=below).hit_blocks == 2
    assert optimum_hits(paths, 4, pinned=True).sum() == 0
    assert optimum_hits(paths, 4, pinned=True, request_blocks=2).sum() == 2
    assert tier_optima(paths, (2, 2), pinned=True) == (0, 2)


def test_shares_lie_between_the_least_and_the_greatest_at_any_weights() -> None:
    draw = random.Random(5)
    for _ in range(200):
        best = [draw.randint(0, 9) for _ in range(draw.randint(1, 4))]
        hits, left = [], 0
        for most in best:
            left += most
            hits.append(draw.randint(0, left))
            left -= hits[-1]
        shares = shares_of_best(hits, best)
        if shares is None:
            assert not any(best)
            continue
        for _ in range(20):
            weights = sorted((draw.random() for _ in best), reverse=True)
            if value(best, weights) > 0:
                assert shares[0] - 1e-9 <= value(hits, weights) / value(best, weights) <= shares[1] + 1e-9


def test_a_tier_of_no_blocks_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="num_blocks must be at least 1"):
        tier_optima(workload([[1]]), (0, 4), pinned=True)
