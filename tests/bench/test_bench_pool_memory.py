"""Memory of a paged allocator whose pool is full.

    pytest tests/bench/test_bench_pool_memory.py --benchmark-only --benchmark-json=FILE

The columns are counted exactly; what Python's objects add to them (a digest, its entry in the index) is `bytes_a_block`
beside the benchmark.
"""

from __future__ import annotations

import os
import tracemalloc
from array import array
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.types import Namespace, RequestId, RequestInfo


def filled(name: str, count: int, length: int = 100, hash: str = "sha256") -> Any:
    """A pool of `count` blocks after prompts of `length` blocks, none alike, that evicted each block once."""
    kinds = {"allocator": name, "hash": hash, "eviction": "lru"}
    load = {kind: next(iter(entry_points(group=f"framework.{kind}", name=one))).load() for kind, one in kinds.items()}
    made = load["allocator"](num_blocks=count, block_size=16, hash=load["hash"](), eviction=load["eviction"]())
    draw, space = np.random.default_rng(0), Namespace()
    for number in range(1, 2 * count // length + 1):
        prompt = draw.integers(0, 2**31 - 1, 16 * length, dtype=np.int32)
        request = RequestInfo(id=RequestId(number), max_total_tokens=16 * length)
        made.allocate(request, prompt, made.lookup(prompt, space))
        made.commit(request.id, prompt)
        made.free(request.id)
    assert made.stats().evictions == count
    return made


@pytest.mark.parametrize(
    ("name", "count", "length"),
    [("prefix", 100_000, 100), *(("prefix_cow", *sizes) for sizes in ((100_000, 100), (150_000, 100), (100_000, 10)))],
)
@pytest.mark.parametrize("hash", ["sha256", "xxh3_128"])
def test_bytes_a_block_of_a_full_pool(benchmark: Any, name: str, count: int, length: int, hash: str) -> None:
    """What a full replay keeps of a block, Python's objects included."""

    def cost() -> float:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            kept = filled(name, count, length, hash)
            assert kept.stats().cached_blocks == count
            return (tracemalloc.get_traced_memory()[0] - before) / count
        finally:
            tracemalloc.stop()

    benchmark.extra_info["bytes_a_block"] = round(benchmark.pedantic(cost, rounds=1), 1)


@pytest.mark.parametrize("hash", ["sha256", "xxh3_128"])
def test_resident_bytes_a_block_of_a_full_pool_in_cpp(benchmark: Any, hash: str) -> None:
    """The same in C++, whose memory only the process's resident size shows (in whole pages)."""
    if "native_cow" not in entry_points(group="framework.allocator").names:
        pytest.skip("framework-native is not installed")
    kept = []

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cost() -> float:
        before = resident()
        kept.append(filled("native_cow", 200_000, 100, hash))
        return (resident() - before) / 200_000

    benchmark.extra_info["bytes_a_block"] = round(benchmark.pedantic(cost, rounds=1), 1)


@pytest.mark.parametrize("name", ["prefix", "prefix_cow"])
def test_the_columns_of_a_pool_take_60_bytes_a_block(name: str) -> None:
    columns = {name: one for name, one in vars(filled(name, 1_000).pool).items() if isinstance(one, array)}
    narrow = dict.fromkeys(("free", "slot", "ref", "depth", "hits", "tenant", "children"), 4)
    wide = dict.fromkeys(("admitted", "last_access", "priority", "next_use"), 8)
    assert {name: one.itemsize for name, one in columns.items()} == {**narrow, **wide}
