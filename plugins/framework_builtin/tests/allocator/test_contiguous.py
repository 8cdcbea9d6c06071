"""Contiguous reservations: their sizes, first fit, and what cannot be used."""

from __future__ import annotations

from random import Random as Draw
from typing import Literal

import numpy as np
import pytest
from paged_helpers import NS, tokens

from framework.errors import DuplicateRequest, InvalidArgument, OutOfBlocks
from framework.types import BlockCopy, BlockId, RequestId, RequestInfo, TableChange
from framework_builtin.allocator.contiguous import ContiguousAllocator


def info(number: int, total: int) -> RequestInfo:
    return RequestInfo(id=RequestId(number), max_total_tokens=total)


def make(
    num_blocks: int = 16, block_size: int = 4, reserve: Literal["max", "pow2", "oracle"] = "oracle", longest: int = 32
) -> ContiguousAllocator:
    return ContiguousAllocator(num_blocks=num_blocks, block_size=block_size, max_model_len=longest, reserve=reserve)


def admit(allocator: ContiguousAllocator, number: int, prompt: int, total: int) -> list[int]:
    ids = np.zeros(prompt, dtype=np.int32)
    allocator.allocate(info(number, total), ids, allocator.lookup(ids, NS))
    return allocator.table(RequestId(number)).tolist()


@pytest.mark.parametrize(
    ("reserve", "prompt", "total", "expected"),
    [("max", 3, 5, 32), ("oracle", 3, 5, 5), ("oracle", 3, 3, 3), ("oracle", 3, 40, 32), ("pow2", 3, 3, 3),
     ("pow2", 3, 4, 4), ("pow2", 3, 5, 5), ("pow2", 3, 6, 7), ("pow2", 3, 8, 11), ("pow2", 10, 30, 32)],
)  # fmt: skip
def test_a_reservation_has_its_rules_size(
    reserve: Literal["max", "pow2", "oracle"], prompt: int, total: int, expected: int
) -> None:
    assert make(reserve=reserve).reserved_tokens(prompt, total) == expected


def test_a_table_is_one_run_and_first_fit_takes_the_lowest() -> None:
    allocator = make()
    assert admit(allocator, 1, 3, 8) == [1, 2]
    assert admit(allocator, 2, 3, 16) == [3, 4, 5, 6]
    assert admit(allocator, 3, 3, 8) == [7, 8]
    allocator.free(RequestId(2))
    assert admit(allocator, 4, 1, 4) == [3]
    assert admit(allocator, 5, 1, 16) == [9, 10, 11, 12]
    stats = allocator.stats()
    assert (stats.free_blocks, stats.external_blocks) == (7, 3)
    with pytest.raises(OutOfBlocks, match="need a run of 5 blocks, have 7 free of 16 and the longest run is 4"):
        admit(allocator, 6, 1, 20)
    assert allocator.stats() == stats
    allocator.check()


def test_freed_runs_grow_together_in_any_order() -> None:
    draw = Draw(2)
    for _ in range(50):
        allocator = make(num_blocks=24, block_size=1)
        live: list[int] = []
        for number in range(60):
            if live and draw.random() < 0.5:
                allocator.free(RequestId(live.pop(draw.randrange(len(live)))))
            else:
                try:
                    admit(allocator, number, 1, draw.randint(1, 7))
                    live.append(number)
                except OutOfBlocks:
                    pass
            allocator.check()
            assert allocator.stats().num_requests == len(live)
        for number in live:
            allocator.free(RequestId(number))
        assert (allocator._starts, allocator._sizes) == ([1], [24])


def test_growth_stays_within_the_reservation() -> None:
    allocator = make()
    admit(allocator, 1, 3, 8)
    assert allocator.extend(RequestId(1), 8) == TableChange(2)
    with pytest.raises(OutOfBlocks, match="reserved 8"):
        allocator.extend(RequestId(1), 9)
    allocator.commit(RequestId(1), tokens(*range(8)))
    with pytest.raises(InvalidArgument):
        allocator.commit(RequestId(1), tokens(*range(7)))
    allocator.check()


def test_a_fork_is_copied_into_a_run_of_its_own() -> None:
    allocator = make()
    admit(allocator, 1, 5, 12)
    change = allocator.fork(RequestId(1), info(2, 9), 5)
    assert change == TableChange(0, (BlockCopy(BlockId(1), BlockId(4)), BlockCopy(BlockId(2), BlockId(5))))
    assert allocator.table(RequestId(2)).tolist() == [4, 5, 6]
    assert allocator.stats().copied_blocks == 2
    with pytest.raises(DuplicateRequest):
        allocator.fork(RequestId(1), info(2, 9), 5)
    with pytest.raises(InvalidArgument):
        allocator.fork(RequestId(1), info(3, 9), 13)
    allocator.check()


def test_another_rule_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="reserve"):
        make(reserve="half")  # type: ignore[arg-type]
