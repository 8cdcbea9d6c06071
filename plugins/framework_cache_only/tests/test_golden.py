"""Hit blocks on real traces, equal to the last block to figures that others' code confirmed."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.optimum import Optimum
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import RequestPaths, build_paths, replay_infinite
from framework_cache_only.reference import replay
from framework_cache_only.stack import lru_curve
from framework_workloads.trace import open_trace

CONVERSATION, AGENTIC = "mooncake_conversation_trace.jsonl.gz", "agentic_coding_100_sessions.jsonl.gz"
POLICIES: dict[str, type[EvictionPolicy]] = {
    "lru": Lru, "lfu": Lfu, "fifo": Fifo, "length_aware": LengthAware, "optimum": Optimum,
}  # fmt: skip
CAPACITIES = (100_000, 50_000, 30_000, 20_000, 10_000, 5_000, 3_000, 1_000)
HITS: dict[str, dict[str, dict[int, int]]] = {
    CONVERSATION: {
        name: dict(zip(CAPACITIES, hits, strict=True))
        for name, hits in {
            "lru": (104_924, 102_290, 93_978, 83_035, 61_046, 32_260, 18_850, 12_847),
            "lfu": (104_755, 99_205, 79_613, 60_582, 38_004, 26_642, 21_636, 13_871),
            "fifo": (102_804, 96_231, 84_808, 74_331, 52_403, 30_698, 18_363, 12_840),
            "length_aware": (96_488, 75_055, 58_487, 47_537, 32_285, 23_026, 19_208, 14_495),
            "optimum": (105_710, 105_710, 105_710, 105_710, 105_710, 98_448, 84_953, 55_019),
        }.items()
    },
    AGENTIC: {
        "lru": {30_000: 1_271_817, 3_000: 1_081_461, 1_000: 550_057},
        "lfu": {30_000: 1_155_583, 10_000: 820_230, 1_000: 452_163},
        "fifo": {30_000: 1_269_444, 10_000: 1_212_683},
    },
}
IN_SUITE = {("lru", 10_000), ("fifo", 30_000), ("lfu", 30_000), ("optimum", 1_000)}
"""On the conversation trace; others are slow."""


@functools.cache
def read(path: Path, block_tokens: int | None = None, full_blocks_only: bool = False) -> RequestPaths:
    if not path.exists():
        pytest.skip(f"no {path.name} among the traces")
    return build_paths(open_trace(path, block_tokens=block_tokens), full_blocks_only=full_blocks_only)


def test_the_infinite_cache_on_the_conversation_trace(traces: Path) -> None:
    paths = read(traces / CONVERSATION)
    result = replay_infinite(paths)
    assert (result.num_requests, result.prompt_blocks, paths.num_nodes) == (12_031, 288_500, 182_790)
    assert result.hit_blocks == 105_710
    assert round(result.hit_rate, 4) == 0.3736
    assert round(result.block_hit_rate, 4) == 0.3664


@pytest.mark.parametrize(
    ("trace", "name", "size"),
    [
        pytest.param(
            trace, name, size, marks=() if trace == CONVERSATION and (name, size) in IN_SUITE else pytest.mark.slow
        )
        for trace, by_name in HITS.items()
        for name, by_size in by_name.items()
        for size in by_size
    ],
)
def test_policies_hit_what_others_code_hits(traces: Path, trace: str, name: str, size: int) -> None:
    paths, bypass = read(traces / trace, 512), name == "optimum"
    result = replay(paths, POLICIES[name](), size, bypass=bypass)
    assert result.hit_blocks == HITS[trace][name][size], result
    if trace == CONVERSATION and not bypass:
        touched_orphans = paths.num_references - result.hit_blocks - result.admitted
        assert (touched_orphans > 0) == (name == "fifo"), "only fifo strands blocks"
        assert result.evictions == result.admitted - size, "the cache is full at the end"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "hits"), [(100_000, 104_922), (50_000, 102_250), (30_000, 93_985), (10_000, 60_852), (1_000, 12_842)]
)
def test_fifo_leaf_first_on_the_conversation_trace(traces: Path, size: int, hits: int) -> None:
    assert replay(read(traces / CONVERSATION), Fifo(), size, leaf_first=True).hit_blocks == hits


def test_full_blocks_only_on_the_conversation_trace(traces: Path) -> None:
    paths = read(traces / CONVERSATION, full_blocks_only=True)
    assert (paths.num_references, replay_infinite(paths).hit_blocks) == (276_491, 105_592)
    golden = {100_000: 104_926, 50_000: 102_724, 30_000: 95_337, 10_000: 62_005, 1_000: 12_990}
    assert dict(zip(golden, lru_curve(paths, list(golden)), strict=True)) == golden
    assert optimum_hits(paths, 1_000, pinned=False).sum() == 54_977


def test_one_pass_gives_lru_at_every_capacity(traces: Path) -> None:
    found = lru_curve(read(traces / CONVERSATION, 512), CAPACITIES)
    assert dict(zip(CAPACITIES, found, strict=True)) == HITS[CONVERSATION]["lru"]


@pytest.mark.slow
def test_one_pass_gives_lru_on_the_agentic_trace(traces: Path) -> None:
    agentic = {30_000: 1_271_817, 10_000: 1_261_002, 5_000: 1_212_151, 3_000: 1_081_461, 2_000: 905_943, 1_000: 550_057}
    paths = read(traces / AGENTIC, 512)
    assert (paths.num_references, paths.num_nodes) == (1_327_320, 54_711)
    assert replay_infinite(paths).hit_blocks == 1_272_609
    assert dict(zip(agentic, lru_curve(paths, list(agentic)), strict=True)) == agentic


BOTH_OPTIMA = {
    CONVERSATION: {
        10_000: (105_710, 105_710), 5_000: (98_448, 97_995), 3_000: (84_953, 84_121), 1_000: (55_019, 51_705),
    },
    AGENTIC: {
        10_000: (1_272_370, 1_272_334), 5_000: (1_246_117, 1_244_421), 3_000: (1_180_175, 1_160_026),
        2_000: (1_091_031, 1_030_398), 1_000: (848_623, 679_827),
    },
}  # fmt: skip
"""capacity -> hits of the published optimum, which may exceed the capacity for a moment, and of the pinned one."""


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=() if name == CONVERSATION else pytest.mark.slow)
        for name, sizes in BOTH_OPTIMA.items()
        for size in sizes
    ],
)
def test_both_optima_counted_by_coming_requests(traces: Path, name: str, size: int) -> None:
    paths = read(traces / name, 512)
    found = tuple(int(optimum_hits(paths, size, pinned=pinned).sum()) for pinned in (False, True))
    assert found == BOTH_OPTIMA[name][size]
