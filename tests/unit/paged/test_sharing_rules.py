"""Rules of sharing that one small fault each would break, for every installed allocator that shares prefixes."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
from paged_helpers import NS, ConstantHash, admit, info, serve, tokens

from framework.errors import StaleHit
from framework.interfaces.allocator import Allocator
from framework.types import RequestId
from framework_builtin.eviction.lru import Lru
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh64 import Xxh64

NAMES = ("prefix", "prefix_cow", "radix", "native", "native_cow")
KINDS = {point.name: point for point in entry_points(group="framework.allocator") if point.name in NAMES}
ONE, TWO, THREE = RequestId(1), RequestId(2), RequestId(3)


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param].load()


def build(kind: Any, num_blocks: int = 8, block_size: int = 2, **options: Any) -> Allocator:
    options = {"hash": Sha256(), "eviction": Lru(), "watermark": 0.0, **options}
    made: Allocator = kind(num_blocks=num_blocks, block_size=block_size, **options)
    return made


def test_a_hit_from_before_a_reset_is_refused(kind: Any) -> None:
    allocator = build(kind)
    serve(allocator, 1, tokens(1, 2, 3))
    hit = allocator.lookup(tokens(1, 2, 3), NS)
    assert hit.num_tokens == 2
    allocator.reset()
    with pytest.raises(StaleHit):
        allocator.allocate(info(2), tokens(1, 2, 3), hit)
    allocator.check()


def test_blocks_that_are_hit_are_not_free_for_the_watermark(kind: Any) -> None:
    allocator = build(kind, 10, 1, watermark=0.2)
    serve(allocator, 1, tokens(1, 2, 3, 4))
    admit(allocator, 2, tokens(9, 9))
    prompt = tokens(1, 2, 3, 4, 5, 6, 7)
    hit = allocator.lookup(prompt, NS)
    assert hit.num_tokens == 4
    assert not allocator.fits(info(3), np.append(prompt, tokens(8)), allocator.lookup(np.append(prompt, tokens(8)), NS))
    assert not allocator.fits(info(3), prompt, hit), "4 blocks are left, 3 are needed and 2 are kept"
    short = tokens(1, 2, 3, 4, 5, 6)
    assert allocator.fits(info(3), short, allocator.lookup(short, NS))


def used_below_cached(kind: Any, **options: Any) -> Allocator:
    """Request 2 has a published block below its own copy of a block whose published twin is cached."""
    allocator = build(kind, 4, 1, **options)
    admit(allocator, 1, tokens(7))
    admit(allocator, 2, tokens(7, 8))
    allocator.commit(ONE, tokens(7))
    allocator.free(ONE)
    allocator.fork(TWO, info(3), 2)
    allocator.commit(THREE, tokens(7, 8))
    allocator.free(THREE)
    return allocator


@pytest.mark.parametrize("hash", [Sha256, Xxh64, ConstantHash])
@pytest.mark.parametrize("leaf_only", [False, True])
def test_a_fork_that_keeps_its_own_block_above_is_not_in_the_way_of_the_published_one(
    kind: Any, leaf_only: bool, hash: Any
) -> None:
    allocator = used_below_cached(kind, leaf_only=leaf_only, hash=hash())
    allocator.check()
    prompt = tokens(1, 2)
    hit = allocator.lookup(prompt, NS)
    assert allocator.fits(info(4), prompt, hit)
    allocator.allocate(info(4), prompt, hit)
    allocator.check()
    for number in (2, 4):
        allocator.free(RequestId(number))
        allocator.check()
    assert allocator.stats().used_blocks == 0


def test_a_block_that_is_cached_again_keeps_the_one_above(kind: Any) -> None:
    allocator = used_below_cached(kind, leaf_only=True)
    allocator.free(TWO)
    allocator.check()
    assert allocator.lookup(tokens(7, 8, 9), NS).num_tokens == 2
    admit(allocator, 4, tokens(1, 2, 3))
    assert allocator.lookup(tokens(7, 8, 9), NS).num_tokens == 1, "the block below went first"
    allocator.check()
