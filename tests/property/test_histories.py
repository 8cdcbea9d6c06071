"""Random histories of right and wrong calls, over every installed allocator, policy and hash.

`Driver` is the oracle: it learns only what the pool would see and checks every rule after every call. Pools, prompts
and alphabets are small, so that everything collides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from random import Random

import pytest

from framework.interfaces.hash import HashScheme
from framework_testing import adversarial
from framework_testing.allocator import survive
from framework_testing.histories import SHARING_AHEAD, fail_shortest, random_history

ALLOCATORS, POLICIES, SCHEMES = (
    {point.name: point for point in entry_points(group=f"framework.{kind}")}
    for kind in ("allocator", "eviction", "hash")
)
WEAK: tuple[Callable[[], HashScheme], ...] = (
    adversarial.Constant, partial(adversarial.Truncated, 2), adversarial.Truncated, adversarial.Fickle,
)  # fmt: skip


def serve(allocator: str, policy: str, draw: Random, steps: int) -> None:
    """One history; a failure shows a shorter one that fails."""
    make, make_policy = ALLOCATORS[allocator].load(), POLICIES[policy].load()
    num_blocks, size = draw.randint(1, 10), draw.choice((1, 2, 3, 16))
    scheme = draw.choice([*(point.load() for point in SCHEMES.values()), *WEAK])
    history = random_history(draw, steps, 4 * size, {**SHARING_AHEAD, "unref_leading": 2})
    run = partial(survive, make=make, block_size=size, scheme=scheme, policy=make_policy)
    fail_shortest(run, history, num_blocks)


@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_no_history_breaks_an_installed_allocator(allocator: str) -> None:
    for seed, policy in enumerate(sorted(POLICIES) * 3):
        serve(allocator, policy, Random(seed), 30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_no_long_history_breaks_an_installed_allocator(allocator: str, policy: str) -> None:
    for seed in range(60):
        serve(allocator, policy, Random(seed), 100)
