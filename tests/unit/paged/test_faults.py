"""The faults that real block managers shipped, each as a test that a faulty allocator fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_helpers import NS, ConstantHash, admit, make, serve, table, tokens

from framework.interfaces.hash import HashScheme
from framework.types import RequestId, TableChange
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh64 import Xxh64


def test_f2_a_collision_ends_what_a_request_publishes() -> None:
    allocator = make(8, 2, hash=ConstantHash())
    serve(allocator, 1, tokens(8, 8))
    admit(allocator, 2, tokens(1, 2, 3, 4, 5))
    for end in (2, 4):
        allocator.commit(RequestId(2), tokens(1, 2, 3, 4)[:end])
    assert allocator.stats().collisions == 1
    allocator.check()


@pytest.mark.parametrize("hash", [Sha256(), Xxh64()])
def test_f5_two_requests_that_compute_the_same_end_with_one_copy(hash: HashScheme) -> None:
    allocator = make(8, 2, hash=hash)
    prompt = tokens(1, 2, 3, 4, 5)
    admit(allocator, 1, prompt)
    admit(allocator, 2, prompt)
    assert not set(table(allocator, 1)) & set(table(allocator, 2))
    assert allocator.commit(RequestId(1), prompt) == TableChange(3)
    assert allocator.commit(RequestId(2), prompt) == TableChange(0)
    assert table(allocator, 1)[:2] == table(allocator, 2)[:2]
    assert table(allocator, 1)[2] != table(allocator, 2)[2]
    allocator.check()
    allocator.free(RequestId(1))
    assert allocator.lookup(prompt, NS).num_tokens == 4, "freeing one copy hid the other"
    allocator.free(RequestId(2))
    assert allocator.stats().cached_blocks == 2
    allocator.check()


def operations(num_blocks: int) -> int:
    """Bytecode lines run by one hit, one eviction and one free in a full pool of that size."""
    import sys

    allocator = make(num_blocks, 1)
    for number in range(num_blocks // 8):
        serve(allocator, number, np.arange(8, dtype=np.int32) + 8 * number)
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        serve(allocator, 10**6, np.arange(8, dtype=np.int32) + 8 * (num_blocks // 16))
        serve(allocator, 10**6 + 1, np.arange(8, dtype=np.int32) + 10**6)
    finally:
        sys.settrace(old)
    assert allocator.stats().evictions > 0
    return count


def test_f15_work_does_not_grow_with_the_pool() -> None:
    small, large = operations(64), operations(4096)
    assert large <= 1.2 * small + 50, f"{small} lines at 64 blocks, {large} at 4096"
