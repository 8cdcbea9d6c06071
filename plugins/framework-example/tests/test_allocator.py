"""PackedAllocator keeps every promise of an allocator, and hands out the blocks it means to."""

from __future__ import annotations

from typing import Any

import pytest
from framework.types import RequestId, as_tokens
from framework_testing import allocator_checks
from framework_testing.allocator import PLAIN, fresh, info

from framework_example.allocator import PackedAllocator


@pytest.mark.parametrize("check", allocator_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(PackedAllocator)


def test_the_lowest_free_blocks_are_handed_out() -> None:
    allocator = fresh(PackedAllocator, num_blocks=8, block_size=2)
    for number, prompt in enumerate(as_tokens([number] * 3) for number in range(3)):
        allocator.allocate(info(number), prompt, allocator.lookup(prompt, PLAIN))
    allocator.free(RequestId(0))
    prompt = as_tokens([9] * 5)
    allocator.allocate(info(3), prompt, allocator.lookup(prompt, PLAIN))
    assert allocator.table(RequestId(3)).tolist() == [1, 2, 7]
