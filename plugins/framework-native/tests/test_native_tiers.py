"""A cache-only replay over tiers in C++ counts what the Python model counts: by request, by tier, to the last block."""

from __future__ import annotations

import os
from dataclasses import astuple
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import registry
from framework.errors import InvalidArgument
from framework.interfaces.replay_counts import TieredReplayCounts
from framework.interfaces.workload import WorkloadRequest
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.replay.tiers import ReplayTiers, TierSpec
from framework.workload.traces import open_trace
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.clock import Clock
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.s3fifo import S3Fifo
from framework_builtin.eviction.slru import Slru
from framework_builtin.tiering.load_or_recompute import LoadOrRecompute
from framework_builtin.tiering.never import Never
from framework_builtin.tiering.on_eviction import OnEviction
from framework_builtin.tiering.on_second_hit import OnSecondHit
from framework_builtin.tiering.write_through import WriteThrough
from framework_native._core import replay_tiers as core
from framework_native.allocator import NativeAllocator
from framework_native.replay import _TWINS
from framework_native.tiers import _POLICIES, _RULES

RULES = {
    "never": Never,
    "on_eviction": OnEviction,
    "copy stays": partial(OnEviction, exclusive=False),
    "load_or_recompute": LoadOrRecompute,
    "write_through": WriteThrough,
    "on_second_hit": OnSecondHit,
    "first use": partial(OnSecondHit, uses=1),
    "fourth use": partial(OnSecondHit, uses=4),
}
POLICIES = {
    **{name: registry.load("eviction", name) for name in sorted(_POLICIES)},
    "lfu aged": partial(Lfu, aged=True),
    "clock 3": partial(Clock, max_count=3),
    "slru 2": partial(Slru, num_segments=2),
    "s3fifo wide": partial(S3Fifo, small=0.4, ghosts=2.0, promote_hits=1),
}


def paths_of(requests: list[list[int]], block_tokens: int = 4, tails: list[int] | None = None) -> RequestPaths:
    """Requests of these block ids; the last block of request i holds `tails[i % len(tails)]` tokens."""
    return build_paths(
        WorkloadRequest(
            arrival_s=float(at),
            input_tokens=(len(ids) - 1) * block_tokens + (tails[at % len(tails)] if tails else block_tokens),
            output_tokens=1,
            block_ids=np.array(ids, dtype=np.int64),
            block_tokens=block_tokens,
        )
        for at, ids in enumerate(requests)
    )


def counted(counts: TieredReplayCounts) -> tuple[object, ...]:
    own = (counts.pool_hit_tokens, counts.admitted, counts.evictions)
    return (np.asarray(counts.tier_hits).tolist(), *own, *map(astuple, counts.tiers))


def both(paths: RequestPaths, names, sizes, rule, *, leaf_first: bool = False):
    """What the core and the model count."""
    fresh = [POLICIES[name]() for name in names]
    found = NativeAllocator.replay_tiers(paths, fresh, sizes, RULES[rule](), leaf_first=leaf_first)
    assert found is not None, (names, rule)
    policies = [POLICIES[name]() for name in names]
    specs = [TierSpec(size, policy) for size, policy in zip(sizes[1:], policies[1:], strict=True)]
    below = ReplayTiers(paths, specs, RULES[rule]())
    result = replay(paths, policies[0], sizes[0], leaf_first=leaf_first, below=below)
    below.lower.check()
    return counted(found), counted(below.counted(result))


TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=60)
TIERS = st.lists(st.tuples(st.sampled_from(sorted(POLICIES)), st.integers(1, 24)), min_size=2, max_size=4)


@pytest.mark.parametrize("rule", RULES)
@given(
    requests=TREES,
    tiers=TIERS,
    block_tokens=st.sampled_from([1, 4, 16]),
    tails=st.lists(st.integers(1, 16), min_size=1, max_size=4),
    leaf_first=st.booleans(),
)
def test_the_core_counts_tiers_as_the_model(rule, requests, tiers, block_tokens, tails, leaf_first):
    paths = paths_of(requests, block_tokens, [min(tail, block_tokens) for tail in tails])
    names, sizes = zip(*tiers, strict=True)
    found, meant = both(paths, names, sizes, rule, leaf_first=leaf_first)
    assert found == meant


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("rule", RULES)
def test_long_random_streams_agree_over_three_tiers(name, rule):
    """Long enough that logs and heaps are compacted many times over."""
    draw = np.random.default_rng(11)
    roots = (draw.zipf(1.3, 900) % 60).tolist()
    requests = [[root, *(draw.integers(0, 3, draw.integers(1, 12)).tolist())] for root in roots]
    found, meant = both(paths_of(requests, tails=[1, 4, 3]), (name, name, name), (60, 90, 40), rule)
    assert found == meant


def test_every_rule_and_policy_that_the_core_knows_is_tested():
    assert {name for name, _ in _TWINS.values()} >= _POLICIES
    made = {type(make()) for make in RULES.values()}
    assert {f"{kind.__module__}:{kind.__qualname__}" for kind in made} == set(_RULES)


def test_what_the_core_does_not_know_is_left_to_the_framework():
    class MyLru(Lru):
        pass

    class MyRule(WriteThrough):
        pass

    paths = paths_of([[0, 1], [0, 2]])
    wrong = OnEviction()
    wrong.exclusive = 1  # type: ignore[assignment]
    fractional = OnSecondHit()
    fractional.uses = 2.5  # type: ignore[assignment]
    for rule in (MyRule(), wrong, fractional):
        assert NativeAllocator.replay_tiers(paths, [Lru(), Lru()], [2, 2], rule) is None, rule
    for policies in ([MyLru(), Lru()], [Lru(), MyLru()], [Lru(), Arc()]):
        assert NativeAllocator.replay_tiers(paths, policies, [2, 2], WriteThrough()) is None, policies
    assert NativeAllocator.replay_tiers(paths, [Lru(), Lru()], [2, 10**19], WriteThrough()) is None


def test_options_beyond_64_bits_count_as_the_model():
    paths = paths_of([[0, 1, 2], [3, 4], [0, 1, 2], [5, 6, 7], [0, 1], [3, 9]] * 20)
    for sizes in ((3, 2**62), (2**62, 2)):
        found = NativeAllocator.replay_tiers(paths, [Lru(), Lru()], sizes, OnSecondHit(uses=10**400))
        below = ReplayTiers(paths, [TierSpec(sizes[1], Lru())], OnSecondHit(uses=10**400))
        assert counted(found) == counted(below.counted(replay(paths, Lru(), sizes[0], below=below)))


def test_wrong_arguments_are_refused():
    paths = paths_of([[0, 1], [0, 2]])
    for sizes in ([0, 4], [4, -3]):
        with pytest.raises(InvalidArgument, match="num_blocks must be at least 1"):
            NativeAllocator.replay_tiers(paths, [Lru(), Lru()], sizes, Never())
    sound = {"nodes": paths.nodes, "starts": paths.starts, "parents": paths.parents, "node_tokens": paths.node_tokens}
    rest = {"on_eviction": True, "uses": 0, "exclusive": True, "next_requests": None, "leaf_first": False}
    broken = [{"node_tokens": paths.node_tokens[:-1]}, {"nodes": np.array([0, 1, 0, 9], np.int32)}]
    for change in broken:
        with pytest.raises(ValueError, match="do not fit together"):
            core(["lru", "lru"], [(), ()], [2, 2], **{**sound, **change}, **rest)
    for names, parameters, sizes in ([], [], []), (["lru"], [()], [2, 2]), (["lru", "lru"], [()], [2, 2]):
        with pytest.raises(ValueError, match="do not fit together"):
            core(names, parameters, sizes, **sound, **rest)
    with pytest.raises(ValueError, match="no policy nobody"):
        core(["lru", "nobody"], [(), ()], [2, 2], **sound, **rest)


CONVERSATION, AGENTIC = "mooncake_conversation_trace.jsonl.gz", "agentic_coding_100_sessions.jsonl.gz"
TRACES = Path(os.environ.get("KVLAB_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
LRU = {50_000: 102_290, 30_000: 93_978, 20_000: 83_035, 10_000: 61_046, 5_000: 32_260, 3_000: 18_850, 1_000: 12_847}


@pytest.fixture(scope="module")
def conversation() -> RequestPaths:
    path = TRACES / CONVERSATION
    if not path.exists():
        pytest.skip(f"no real trace at {path}; set KVLAB_TRACES to their folder")
    return build_paths(open_trace(path))


@pytest.mark.parametrize(
    "sizes",
    [(10_000, 20_000), (5_000, 15_000), (5_000, 5_000, 20_000), (1_000, 2_000, 47_000), (1_000, 2_000, 7_000, 20_000)],
)
def test_exclusive_lru_tiers_hit_what_one_cache_of_their_sum_hits(conversation, sizes):
    found = NativeAllocator.replay_tiers(conversation, [Lru() for _ in sizes], sizes, OnEviction())
    sums = [sum(sizes[: count + 1]) for count in range(len(sizes))]
    hits = found.tier_hits.sum(axis=0).tolist()
    assert hits == [LRU[up] - (LRU[down] if down else 0) for down, up in zip([0, *sums], sums, strict=False)]
    if sizes == (10_000, 20_000):
        assert hits == [61_046, 32_932]
        assert found.tiers[0].stored == found.evictions == 217_454


@pytest.mark.parametrize("rule", RULES)
def test_the_conversation_trace_counts_as_the_model(conversation, rule):
    found, meant = both(conversation, ("lru", "lru"), (3_000, 7_000), rule)
    assert found == meant


def test_the_agentic_trace_counts_as_the_model_and_as_one_cache_of_the_sum():
    """Its longest request has 1,746 blocks: the stack property holds for pools that it fits in."""
    path = TRACES / AGENTIC
    if not path.exists():
        pytest.skip(f"no real trace at {path}; set KVLAB_TRACES to their folder")
    paths = build_paths(open_trace(path, block_tokens=512))
    for host, both_hit in {3_000: 1_212_151, 8_000: 1_261_002}.items():
        found = NativeAllocator.replay_tiers(paths, [Lru(), Lru()], (2_000, host), OnEviction())
        assert found.tier_hits.sum(axis=0).tolist() == [905_943, both_hit - 905_943]
    first = build_paths(islice(open_trace(path, block_tokens=512), 400))
    found, meant = both(first, ("lru", "lru"), (1_000, 500), "write_through")
    assert found == meant
