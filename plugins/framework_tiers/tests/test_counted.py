"""Tiers below the pool in a cache-only replay: exact integers, second models, and the faults that engines shipped."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
from replay_helpers import flushed, random_requests, workload

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.leaf_lru import LeafLru
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import CacheOnlyResult, RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_research.hazard import Hazard
from framework_research.tail_lru import TailLru
from framework_tiers.counted import CountedTiers
from framework_tiers.rules import Never, OnEviction, OnSecondHit, WriteThrough
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering
from framework_workloads.trace import open_trace

CONVERSATION = "mooncake_conversation_trace.jsonl.gz"
LRU = {50_000: 102_290, 30_000: 93_978, 20_000: 83_035, 10_000: 61_046, 5_000: 32_260, 3_000: 18_850, 1_000: 12_847}


def replayed(paths: RequestPaths, rule: Tiering, *sizes: int, pool: EvictionPolicy | None = None) -> CountedTiers:
    return both(paths, rule, *sizes, pool=pool)[1]


def both(
    paths: RequestPaths, rule: Tiering, *sizes: int, pool: EvictionPolicy | None = None
) -> tuple[CacheOnlyResult, CountedTiers]:
    below = CountedTiers(paths, [(size, Lru()) for size in sizes[1:]], rule)
    found = replay(paths, pool or Lru(), sizes[0], below=below)
    below.lower.check()
    return found, below


@functools.cache
def conversation(path: Path) -> RequestPaths:
    if not path.exists():
        pytest.skip(f"no {path.name} among the traces")
    return build_paths(open_trace(path))


def hits(below: CountedTiers) -> tuple[int, ...]:
    return (below.pool_hits, *(tier.counts.hits for tier in below.lower.tiers))


@pytest.mark.parametrize(
    "sizes",
    [
        (10_000, 20_000),
        pytest.param((1_000, 2_000, 47_000), marks=pytest.mark.slow),
    ],
)
def test_exclusive_lru_tiers_hit_what_one_cache_of_their_sum_hits(traces: Path, sizes: tuple[int, ...]) -> None:
    found, below = both(conversation(traces / CONVERSATION), OnEviction(), *sizes)
    sums = [sum(sizes[: count + 1]) for count in range(len(sizes))]
    assert hits(below) == tuple(
        LRU[up] - (LRU[down] if down else 0) for down, up in zip([0, *sums], sums, strict=False)
    )
    assert found.hit_blocks == LRU[sums[-1]]
    if sizes == (10_000, 20_000):
        assert hits(below) == (61_046, 32_932)
        assert below.lower.tiers[0].counts.stored == found.evictions == 217_454, "each eviction is a demotion"


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(10_000, 20_000), (1_000, 5_000, 30_000)])
def test_inclusive_lru_tiers_hit_what_the_largest_hits(traces: Path, sizes: tuple[int, ...]) -> None:
    found, below = both(conversation(traces / CONVERSATION), WriteThrough(), *sizes)
    assert found.hit_blocks == LRU[sizes[-1]]
    assert hits(below)[0] == LRU[sizes[0]]


@pytest.mark.slow
def test_the_selective_rule_writes_a_fifth_of_write_through_on_the_conversation_trace(traces: Path) -> None:
    below = replayed(conversation(traces / CONVERSATION), OnSecondHit(), 10_000, 20_000)
    assert hits(below) == (61_046, 21_741)
    assert below.lower.tiers[0].counts.stored == 44_370, "write_through stores 205,465"


RULES: list[Tiering] = [
    Never(), OnEviction(), OnEviction(exclusive=False), WriteThrough(), OnSecondHit(), OnSecondHit(uses=5),
]  # fmt: skip


def ids(rule: Tiering) -> str:
    return "-".join([type(rule).__name__, *map(str, vars(rule).values())])


@pytest.mark.parametrize("rule", RULES, ids=ids)
@pytest.mark.parametrize("seed", range(3))
def test_two_tiers_equal_sets_moved_by_the_definition(rule: Tiering, seed: int) -> None:
    requests = random_requests(seed, 200, width=3, longest=5)
    sizes = [(6, 5), (5, 12), (9, 30)][seed % 3]
    paths = workload(requests)
    below = replayed(paths, rule, *sizes)
    uses = rule.uses if isinstance(rule, OnSecondHit) else None
    found = by_the_definition(requests, *sizes, rule, uses)
    assert (below.request_hits, below.lower.tiers[0].counts.stored) == found


def by_the_definition(
    requests: Sequence[Sequence[int]], pool_size: int, tier_size: int, rule: Tiering, threshold: int | None
) -> tuple[list[tuple[int, ...]], int]:
    """Hits by tier and stores of two LRU tiers, with the four published rules written out instead of asked."""
    last: dict[tuple[int, ...], int] = {}
    uses: dict[tuple[int, ...], int] = {}
    pool: set[tuple[int, ...]] = set()
    tier: set[tuple[int, ...]] = set()
    counted, stored = [], 0
    for now, prompt in enumerate(requests):
        path = [tuple(prompt[: depth + 1]) for depth in range(len(prompt))]
        prefix = next((depth for depth, node in enumerate(path) if node not in pool | tier), len(path))
        in_pool = sum(node in pool for node in path[:prefix])
        counted.append((in_pool, prefix - in_pool))
        for node in path:
            last[node], uses[node] = now, uses.get(node, 0) + 1
        oldest = lambda node: (last[node], -len(node))  # noqa: E731
        if isinstance(rule, OnEviction) and rule.exclusive:
            tier -= set(path)
        demoted = sorted(pool - set(path), key=oldest)[: max(0, len(pool | set(path)) - pool_size)]
        pool = (pool | set(path)) - set(demoted)
        wanted = demoted if isinstance(rule, OnEviction) else []
        if isinstance(rule, WriteThrough):
            wanted = path
        if threshold is not None:
            wanted = [node for node in path if uses[node] >= threshold]
        for node in wanted:
            if node in tier:
                continue
            if len(tier) == tier_size:
                others = tier - set(path)
                if not others:
                    continue
                tier.remove(min(others, key=oldest))
            tier.add(node)
            stored += 1
    return counted, stored


@pytest.mark.parametrize("policy", [Lru, Fifo, Lfu, Belady, Arc, LeafLru, Hazard, TailLru])
def test_every_tier_takes_any_policy_and_a_rule_that_moves_nothing_changes_nothing(
    policy: type[EvictionPolicy],
) -> None:
    paths = workload(random_requests(4, 150, width=3, longest=5))
    alone = replay(paths, policy(), 8)
    for rule in RULES:
        below = CountedTiers(paths, [(10, policy()), (20, policy())], rule)
        found = replay(paths, policy(), 8, below=below)
        below.lower.check()
        assert sum(hits(below)) == found.hit_blocks >= below.pool_hits > 0, rule
        if isinstance(rule, Never):
            assert (found, found.request_hits.tolist()) == (alone, alone.request_hits.tolist())
            assert below.pool_hits == found.hit_blocks


def test_a_policy_of_a_lower_tier_sees_the_future() -> None:
    def found(policy: type[EvictionPolicy], seed: int) -> int:
        paths = workload(random_requests(seed, 300, width=4, longest=5))
        below = CountedTiers(paths, [(10, policy())], OnEviction())
        return replay(paths, Lru(), 6, below=below).hit_blocks

    assert sum(found(Belady, seed) for seed in range(4)) > 1.1 * sum(found(Lru, seed) for seed in range(4))


def test_first_in_first_out_holds_when_one_request_demotes_more_than_a_tier_has_room_for() -> None:
    """Contents of one last use then lie in one block of the tier one after the other."""
    paths = workload([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2]])
    below = CountedTiers(paths, [(2, Fifo())], OnEviction(exclusive=False))
    replay(paths, Belady(), 4, below=below)
    assert below.request_hits == [(0, 0), (0, 0), (0, 2)], "the deepest went first, the two shallowest stayed"


class Half(OnEviction):
    """Loads the first half of what it is offered."""

    def load(self, offer: LoadOffer, now: float) -> int:
        assert len(offer.tiers) == len(offer.num_tokens)
        assert offer.load_s is None
        assert offer.cached_tokens < offer.num_tokens[0]
        assert offer.num_tokens[-1] <= offer.prompt_tokens
        return len(offer.tiers) // 2


def test_what_a_rule_does_not_load_is_recomputed() -> None:
    paths = workload([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]])
    below = replayed(paths, Half(), 4, 8)
    assert below.request_hits == [(0, 0), (0, 0), (0, 2)]
    assert below.lower.tiers[0].counts.read == 2, "what is recomputed is not read"
    assert below.lower.tiers[0].counts.dropped == 4, "the pool has all four again"


def test_what_was_hit_once_is_not_counted_as_unread() -> None:
    """A threshold counts what was recomputed and what lies behind a miss."""
    tier = replayed(workload(flushed([1, 2, 3], 6, pool=4)), OnSecondHit(), 4, 8).lower.tiers[0]
    assert (tier.counts.hits, tier.num_unread) == (12, 0), "stored at the second use, hit from the third on"


def test_a_store_for_which_everything_is_in_use_is_dropped_and_counted() -> None:
    below = replayed(workload([[1, 2, 3, 4]]), WriteThrough(), 8, 3)
    assert (below.lower.tiers[0].counts.stored, below.lower.tiers[0].counts.refused) == (3, 1)


def test_a_tier_without_blocks_and_a_pool_that_declines_are_refused() -> None:
    paths = workload([[1]])
    with pytest.raises(InvalidArgument, match="tier 1: num_blocks must be at least 1, found 0"):
        CountedTiers(paths, [(0, Lru())], Never())
    with pytest.raises(InvalidArgument, match="neither with bypass"):
        replay(paths, Lru(), 4, bypass=True, below=CountedTiers(paths, [(4, Lru())], Never()))


class Asked(Tiering):
    """Stores what `wanted` says, and notes each question."""

    def __init__(self, *wanted: tuple[Event, int]) -> None:
        self.wanted, self.log = wanted, list[tuple[Event, int, int]]()

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        self.log.append((event, block.tier, block.depth))
        return (event, block.tier) in self.wanted


@pytest.mark.parametrize(
    ("wanted", "log", "hits_of"),
    [
        ([("written", 0), ("written", 1)], [("written", 0, 0), ("written", 1, 0)], (0, 1, 0)),
        (
            [("written", 0), ("used", 1)],
            [("written", 0, 0), ("written", 1, 0), ("used", 0, 0), ("used", 1, 0)],
            (0, 1, 0),
        ),
        ([("written", 0), ("evicted", 1)], [("written", 0, 0), ("written", 1, 0)], (0, 0, 1)),
    ],
    ids=["written", "used", "evicted"],
)
def test_a_rule_is_asked_about_each_edge_as_content_comes_is_used_and_goes(
    wanted: list[tuple[Event, int]], log: list[tuple[Event, int, int]], hits_of: tuple[int, ...]
) -> None:
    rule, evicts = Asked(*wanted), wanted[1] == ("evicted", 1)
    below = replayed(workload([[1], [2], [1], [1]] if evicts else [[1], [1], [2], [1]]), rule, 1, 1 if evicts else 2, 2)
    assert below.request_hits[2 if evicts else 3] == hits_of
    if wanted[1] == ("used", 1):
        log = [*log[:2], ("used", 1, 0)]  # tier 1 holds it, so the pool's edge is not asked about
    assert rule.log[: len(log)] == log
    for tier in below.lower.tiers[1:]:
        assert tier.counts.stored >= 1, "what tier 1 held went on to tier 2"


def test_a_rule_s_loads_begin_behind_what_the_pool_holds() -> None:
    """The pool holds the first two of four: half of the rest is loaded, and the tokens of the two are said."""

    class Notes(Half):
        def load(self, offer: LoadOffer, now: float) -> int:
            offers.append(offer)
            return super().load(offer, now)

    offers: list[LoadOffer] = []
    paths = workload([[1, 2, 3, 4]])
    below = CountedTiers(paths, [(8, Lru())], Notes(exclusive=False))
    for node in (2, 3):
        below.lower.tiers[0].insert(node, 0.0, pinned=False)
    assert below.lower.find([0, 1, 2, 3], [True, True, False, False], 1.0) == [0, 0, 1]
    tokens = [int(paths.node_tokens[node]) for node in range(4)]
    assert [(offer.tiers, offer.cached_tokens, offer.num_tokens, offer.prompt_tokens) for offer in offers] == [
        ((1, 1), tokens[1], tuple(tokens[2:]), tokens[3])
    ]
