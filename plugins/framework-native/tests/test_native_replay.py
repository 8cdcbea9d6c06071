"""A cache-only replay in C++ counts what the Python reference counts, to the last block."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from framework.errors import InvalidArgument
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.mru import Mru
from framework_builtin.eviction.optimum import Optimum
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_cache_only.testing.replay_core import paths_of
from framework_native._core import replay as core
from framework_native.replay import _TWINS, NativeReplay
from framework_testing import replay_core_checks
from framework_workloads.trace import open_trace

POLICIES = {
    "lru": Lru,
    "fifo": Fifo,
    "mru": Mru,
    "lfu": Lfu,
    "lfu aged": partial(Lfu, aged=True),
    "length_aware": LengthAware,
    "belady": Belady,
    "optimum": Optimum,
}


@pytest.mark.parametrize("check", replay_core_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check):
    check(NativeReplay)


def both(paths: RequestPaths, make, size: int, **switches: bool) -> tuple[tuple[list[int], int, int], ...]:
    """What the core and the reference count."""
    counts = NativeReplay().count(paths, make(), size, **switches)
    meant = replay(paths, make(), size, **switches)
    assert counts is not None, make
    return tuple((list(map(int, c.request_hits)), c.admitted, c.evictions) for c in (counts, meant))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("switches", [{}, {"leaf_first": True}, {"bypass": True}], ids=str)
def test_long_random_streams_agree(name, switches):
    """Long enough that logs and heaps are compacted many times over."""
    draw = np.random.default_rng(7)
    roots = (draw.zipf(1.3, 1500) % 60).tolist()
    requests = [[root, *(draw.integers(0, 3, draw.integers(1, 12)).tolist())] for root in roots]
    found, meant = both(paths_of(requests), POLICIES[name], 150, **switches)
    assert found == meant


def test_one_block_of_capacity_and_requests_longer_than_the_cache():
    paths = paths_of([[0], [0, 1, 2, 3], [0], [0, 1], [5, 6, 7], [0, 1]])
    for name, make in POLICIES.items():
        for size in (1, 2):
            found, meant = both(paths, make, size)
            assert found == meant, (name, size)


def test_a_capacity_beyond_64_bits_is_left_to_the_framework():
    paths = paths_of([[0, 1], [0, 2]])
    assert NativeReplay().count(paths, Lru(), 10**19) is None
    found, meant = both(paths, Lru, 2**62)
    assert found == meant


def test_every_twin_is_tested():
    tested = {f"{type(make()).__module__}:{type(make()).__qualname__}" for make in POLICIES.values()}
    assert tested == set(_TWINS)


def test_what_the_core_does_not_know_is_left_to_the_framework():
    class Mine(Lru):
        pass

    paths = paths_of([[0, 1], [0, 2]])
    for policy in (Mine(), Arc()):
        assert NativeReplay().count(paths, policy, 2) is None


def test_wrong_arguments_are_refused():
    paths = paths_of([[0, 1], [0, 2]])
    with pytest.raises(InvalidArgument, match="num_blocks must be at least 1, found 0"):
        NativeReplay().count(paths, Lru(), 0)
    sound = {"nodes": paths.nodes, "starts": paths.starts, "parents": paths.parents, "next_requests": None}
    broken = [
        {"nodes": np.array([0, 1, 0, 9], np.int32)},
        {"nodes": np.array([0, -1, 0, 2], np.int32)},
        {"starts": np.array([0, 4, 2], np.int64)},
        {"starts": np.array([0, 2, 5], np.int64)},
        {"starts": np.empty(0, np.int64)},
        {"parents": np.array([-1, 0, 7], np.int32)},
        {"next_requests": np.zeros(3, np.int32)},
    ]
    for change in broken:
        with pytest.raises(ValueError, match="do not fit together"):
            core("lru", False, **{**sound, **change}, num_blocks=2, leaf_first=False, bypass=False)


TRACES = Path(os.environ.get("KVLAB_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
GOLDEN = {
    ("mooncake_conversation_trace.jsonl.gz", None): {
        "lru": 61_046, "lfu": 38_004, "fifo": 52_403, "length_aware": 32_285, "optimum": 105_710,
    },
    ("agentic_coding_100_sessions.jsonl.gz", 512): {
        "lru": 1_261_002, "lfu": 820_230, "fifo": 1_212_683, "optimum": 1_272_370,
    },
}  # fmt: skip
"""Hit blocks in a pool of 10,000, as in tests/unit/replay/test_golden.py."""


@pytest.mark.parametrize(("file", "block_tokens"), GOLDEN)
def test_golden_hit_blocks_of_the_real_traces(file: str, block_tokens: int | None) -> None:
    if not (TRACES / file).exists():
        pytest.skip(f"no real trace at {TRACES / file}; set KVLAB_TRACES to their folder")
    paths = build_paths(open_trace(TRACES / file, block_tokens=block_tokens))
    for name, wanted in GOLDEN[file, block_tokens].items():
        make = POLICIES[name]
        counts = NativeReplay().count(paths, make(), 10_000, bypass=make.bypass)
        assert int(counts.request_hits.sum()) == wanted, name
