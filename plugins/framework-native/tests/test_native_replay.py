"""A cache-only replay in C++ counts what the Python reference counts, to the last block."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from framework.errors import InvalidArgument
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.testing import replay_core_checks
from framework.testing.replay_core import paths_of
from framework.workload.traces import open_trace
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.mru import Mru
from framework_builtin.eviction.optimum import Optimum
from framework_native._core import replay as core
from framework_native.replay import _TWINS, NativeReplay

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
CONVERSATION, AGENTIC = "mooncake_conversation_trace.jsonl.gz", "agentic_coding_100_sessions.jsonl.gz"
GOLDEN = {
    CONVERSATION: {
        "lru": {10_000: 61_046, 5_000: 32_260, 1_000: 12_847, 100_000: 104_924},
        "lfu": {10_000: 38_004, 1_000: 13_871},
        "fifo": {10_000: 52_403, 1_000: 12_840},
        "length_aware": {10_000: 32_285, 1_000: 14_495},
        "optimum": {10_000: 105_710, 5_000: 98_448, 1_000: 55_019},
    },
    AGENTIC: {
        "lru": {30_000: 1_271_817, 10_000: 1_261_002, 5_000: 1_212_151, 3_000: 1_081_461, 1_000: 550_057},
        "lfu": {30_000: 1_155_583, 10_000: 820_230, 1_000: 452_163},
        "fifo": {30_000: 1_269_444, 10_000: 1_212_683},
        "optimum": {10_000: 1_272_370, 5_000: 1_246_117, 1_000: 848_623},
    },
}


@pytest.fixture(scope="module", params=[CONVERSATION, AGENTIC])
def trace(request) -> tuple[str, RequestPaths]:
    path = TRACES / request.param
    if not path.exists():
        pytest.skip(f"no real trace at {path}; set KVLAB_TRACES to their folder")
    tokens = 512 if request.param == AGENTIC else None
    return request.param, build_paths(open_trace(path, block_tokens=tokens))


def test_golden_hit_blocks_of_the_real_traces(trace):
    file, paths = trace
    for name, hits in GOLDEN[file].items():
        make = POLICIES[name]
        for size, wanted in hits.items():
            counts = NativeReplay().count(paths, make(), size, bypass=make.bypass)
            assert int(counts.request_hits.sum()) == wanted, (name, size)


def test_fifo_leaf_first_on_the_conversation_trace(trace):
    file, paths = trace
    if file != CONVERSATION:
        pytest.skip("golden figures of the other trace")
    for size, wanted in {100_000: 104_922, 50_000: 102_250, 30_000: 93_985, 10_000: 60_852, 1_000: 12_842}.items():
        counts = NativeReplay().count(paths, Fifo(), size, leaf_first=True)
        assert int(counts.request_hits.sum()) == wanted, size
