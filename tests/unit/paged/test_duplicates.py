"""Equal contents in several blocks, in an allocator that keeps them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from paged_helpers import NS, ConstantHash, admit, make, serve, table, tokens

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.types import RequestId
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_testing import allocator_checks


class First(EvictionPolicy):
    """Evicts the shallowest candidate, so that suffixes outlive their prefix."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def pin(self, blocks: Any, now: float) -> None:
        self.held.difference_update(blocks)

    def release(self, blocks: Any, now: float) -> None:
        self.held.update(blocks)

    def victim(self, now: float) -> Any:
        return min(self.held, key=lambda block: (self.blocks.depth[block], block))

    def evicted(self, block: Any, now: float) -> None:
        self.held.discard(block)


@pytest.mark.parametrize("check", allocator_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [pytest.param(PrefixAllocator, marks=pytest.mark.slow), PrefixCowAllocator])
def test_an_allocator_that_keeps_duplicates_passes_the_kit(kind: Any, check: Any) -> None:
    def keeping(*, num_blocks: int, block_size: int, hash: Any, eviction: Any) -> Any:
        kept = "keep" if hash.collision_resistant else "merge"  # the other is refused, see below
        return kind(num_blocks=num_blocks, block_size=block_size, hash=hash, eviction=eviction, duplicates=kept)

    check(keeping)


def lost_head(duplicates: str) -> tuple[Any, list[int]]:
    """A prefix of three blocks whose first is evicted and computed again: the allocator, and the second table."""
    allocator = make(8, 2, kind=partial(PrefixAllocator, duplicates=duplicates), eviction=First())
    prompt = tokens(0, 0, 1, 1, 2, 2, 3)
    serve(allocator, 1, prompt)
    admit(allocator, 2, tokens(*[9] * 11))  # six blocks of eight: one is evicted
    allocator.free(RequestId(2))
    assert allocator.lookup(prompt, NS).num_tokens == 0
    admit(allocator, 3, prompt)
    allocator.commit(RequestId(3), prompt)
    return allocator, table(allocator, 3)


def held(allocator: Any) -> list[bytes]:
    return [name for name in allocator.pool.block_hash if name is not None]


def test_kept_a_content_computed_again_has_two_blocks_until_one_is_evicted() -> None:
    allocator, blocks = lost_head("keep")
    assert len(held(allocator)) == 5
    assert len({*held(allocator)}) == 3
    assert allocator.stats().cached_blocks == 2, "the two suffix blocks of the first request"
    assert allocator.stats().used_blocks == 4
    allocator.check()
    found = allocator.lookup(tokens(0, 0, 1, 1, 2, 2, 3), NS).blocks
    assert found[0] == blocks[0]
    assert set(found[1:]).isdisjoint(blocks), "lookups find what was published first"
    allocator.free(RequestId(3))
    admit(allocator, 4, tokens(*[7] * 11))  # evicts by depth: the head, and one of each pair
    allocator.check()
    assert allocator.stats().evictions == 4


def test_duplicates_are_refused_where_names_may_collide_and_with_leaf_only() -> None:
    with pytest.raises(InvalidArgument, match="ConstantHash may collide"):
        make(kind=partial(PrefixAllocator, duplicates="keep"), hash=ConstantHash())
    with pytest.raises(InvalidArgument, match="set leaf_only=false"):
        make(kind=partial(PrefixAllocator, duplicates="keep"), leaf_only=True)
    with pytest.raises(InvalidArgument, match="merge or keep, found 'both'"):
        make(kind=partial(PrefixAllocator, duplicates="both"))
