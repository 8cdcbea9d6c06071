"""Each published policy does what its paper says, on histories short enough to check by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from eviction_histories import Pool, evicted, flat, victims
from replay_helpers import workload

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.types import BlockHash, BlockId
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.clock import Clock
from framework_builtin.eviction.cost_aware import CostAware
from framework_builtin.eviction.depth_aware import DepthAware
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.gdsf import Gdsf
from framework_builtin.eviction.leaf_lru import LeafLru
from framework_builtin.eviction.lecar import LeCaR
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lhd import Lhd
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.lru_k import LruK
from framework_builtin.eviction.mru import Mru
from framework_builtin.eviction.priority import Priority
from framework_builtin.eviction.random import Random
from framework_builtin.eviction.s3fifo import S3Fifo
from framework_builtin.eviction.sieve import Sieve
from framework_builtin.eviction.slru import Slru
from framework_builtin.eviction.tenant_fair import TenantFair
from framework_builtin.eviction.ttl import Ttl
from framework_builtin.eviction.two_q import TwoQ
from framework_builtin.eviction.w_tinylfu import FrequencySketch, WTinyLfu
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay


@pytest.mark.parametrize(
    ("policy", "text", "capacity", "expected"),
    [
        (Mru(), "abcdad", 3, "c"),  # d pushes out c, the newest; then a and d hit
        (Lfu(), "aabcdb", 3, "b" + "c"),  # b, c, d were used once: the oldest of them goes
        (Clock(), "abcabd", 3, "c"),  # c alone was not used again
        (Clock(), "abcabcd", 3, "a"),  # all were: one round clears every mark
        (Sieve(), "abcad" + "e", 3, "bc"),  # a is spared once and stays behind the hand
        (LruK(history=0), "aabbcd", 3, "c"),  # c has no second use
        (Belady(), "abcdab", 3, "c"),  # c never comes back, d is not yet here
        (Ttl(ttl=100), "abcad", 3, "b"),  # nothing expired: least recently used
        (Ttl(ttl=2, refresh=False), "aaabc" + "d", 3, "a"),  # a expired though it is the most used
        (TenantFair(), "abcad", 3, "b"),  # one tenant: least recently used
        (LeafLru(), "abcad", 3, "b"),
        (CostAware(), "abcad", 3, "b"),  # equal costs: least recently used
        (Priority(), "abcad", 3, "b"),
        (DepthAware(), "abcad", 3, "b"),
        (Slru(num_segments=2), "aabbcd" + "e", 4, "c"),  # a and b were lifted
    ],
)
def test_flat_histories_by_hand(policy: EvictionPolicy, text: str, capacity: int, expected: str) -> None:
    assert victims(policy, text, capacity) == expected


@pytest.mark.parametrize(
    ("policy", "requests", "capacity", "expected"),
    [
        (LengthAware(), [[1, 2, 3], [4], [5]], 4, [3]),  # all used once: the deepest
        (Lru(), [[1, 2, 3], [4], [5]], 4, [3]),  # the deepest of the oldest request
        (Mru(), [[1, 2, 3], [4], [5]], 4, [4]),
        (DepthAware(weight=0), [[1], [2, 3], [4], [5]], 4, [1]),
        (DepthAware(weight=5), [[1], [2, 3], [4], [5]], 4, [3]),  # a block of depth is five accesses older
        (CostAware(crossover_tokens=4), [[1], [2, 3], [4], [5]], 4, [1]),
        (Gdsf(crossover_tokens=1), [[1, 2], [3], [4]], 3, [1]),  # 2 costs more to compute; of 1 and 3 the older
        (Gdsf(crossover_tokens=0), [[1, 2], [3], [4]], 3, [2]),  # equal costs: the oldest, deepest first
    ],
)
def test_trees_by_hand(policy: EvictionPolicy, requests: list[list[int]], capacity: int, expected: list[int]) -> None:
    assert evicted(policy, requests, capacity) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clock(max_count=0), "clock.max_count"),
        (lambda: S3Fifo(small=0), "s3fifo needs"),
        (lambda: S3Fifo(ghosts=float("inf")), "s3fifo needs"),
        (lambda: Slru(num_segments=0), "slru.num_segments"),
        (lambda: TwoQ(newcomers=1), "two_q needs"),
        (lambda: LruK(k=0), "lru_k needs"),
        (lambda: Gdsf(crossover_tokens=-1), "gdsf.crossover_tokens"),
        (lambda: CostAware(crossover_tokens=0), "cost_aware.crossover_tokens"),
        (lambda: DepthAware(weight=-1), "depth_aware.weight"),
        (lambda: WTinyLfu(window=0), "w_tinylfu.window"),
        (lambda: Lhd(samples=0), "lhd.samples"),
        (lambda: Ttl(ttl=0), "ttl.ttl"),
        (lambda: Priority(retention=-1), "priority.retention"),
    ],
)
def test_senseless_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_a_leaf_goes_before_its_parent_however_old_the_parent_is() -> None:
    pool = Pool(LeafLru())
    pool.offer_each(1, 2, 3)
    pool.children[1] = 1
    assert pool.policy.victim(9.0) == 2
    pool.policy.evicted(BlockId(2), 9.0)
    pool.children[1] = 0
    assert pool.drain(9.0) == [1, 3]
    stuck = Pool(LeafLru())
    stuck.offer(1, 0.0)
    stuck.children[1] = 1
    assert stuck.drain(1.0) == [1], "with inner blocks only, the oldest of them goes"


def test_lecar_shifts_its_weight_towards_the_expert_that_was_right() -> None:
    policy = LeCaR(seed=1)
    pattern = ("a" * 3 + "b" * 3 + "".join(chr(1000 + i) for i in range(8))) * 30
    replay(workload(flat(pattern)), policy, 4)
    assert 0.01 <= policy._lru_weight <= 0.99
    assert policy._lru_weight != 0.5
    assert victims(LeCaR(seed=1), pattern, 4) == victims(LeCaR(seed=1), pattern, 4)


@pytest.mark.parametrize("expert", ["lru", "lfu"])
def test_lecar_trusts_an_expert_less_after_its_victim_came_back(expert: str) -> None:
    policy = LeCaR()
    pool = Pool(policy)
    pool.offer_each(1, 2, 3)
    pool.use(1, 3.0)
    policy.pin([BlockId(2)], 4.0)
    policy.release([BlockId(2)], 4.0)
    # then 1 is the least recent, used twice; 2 the least often used
    policy._uses[BlockId(3)] = 5
    pool.policy.pin([BlockId(3)], 5.0)
    pool.policy.release([BlockId(3)], 5.0)
    policy._lru_weight = 1.0 if expert == "lru" else 0.0
    victim = policy.victim(6.0)
    assert victim == (1 if expert == "lru" else 2)
    policy.evicted(victim, 6.0)
    policy._lru_weight = 0.5
    policy.admit([victim], 7.0)
    assert policy._lru_weight < 0.5 if expert == "lru" else policy._lru_weight > 0.5


def test_aging_lets_go_of_what_was_popular_long_ago() -> None:
    text = "a" * 9 + "bcdefghijklmnopqrstuvwxyzABCDEFGH"
    assert "a" not in victims(Lfu(), text, 3)
    assert "a" in victims(Lfu(aged=True), text, 3)


@pytest.mark.parametrize("policy", [Lru, Fifo])
def test_blocks_used_again_and_again_leave_no_growing_queue(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy())
    for access in range(1, 5000):
        pool.last_access[1] = access
        pool.policy.release([1], 0.0)
        pool.policy.pin([1], 0.0)
    stored = len(getattr(pool.policy, "_queue", ())) + len(getattr(pool.policy, "_heap", ()))
    assert stored < 200, stored


def test_lru_k_continues_the_history_of_a_name_it_remembers() -> None:
    history = "abcd" + "a" + "xy"
    assert "a" not in victims(LruK(history=2), history, 3)[1:], "its second use, across an eviction, counts"
    assert victims(LruK(history=0), history, 3) == "abcd"


def test_priorities_go_first_and_lapse() -> None:
    for now, expected in ((10, [2, 1, 4, 3]), (13, [1, 2, 4, 3]), (20, [1, 2, 3, 4])):
        pool = Pool(Priority(retention=12))
        for time, (block, priority) in enumerate([(1, 3), (2, 0), (3, 9), (4, 5)]):
            pool.offer(block, float(time), priority)
        assert pool.drain(float(now)) == expected, now
    forever = Pool(Priority())
    for time, (block, priority) in enumerate([(1, 3), (2, 0), (3, 9)]):
        forever.offer(block, float(time), priority)
    assert forever.drain(1e9) == [2, 1, 3]


def draws(seed: int) -> list[int]:
    pool = Pool(Random(seed), 39)
    pool.policy.release(list(range(1, 40)), 0.0)
    pool.policy.pin([3, 7], 0.0)
    return pool.drain(0.0)


def test_random_draws_from_its_seed() -> None:
    assert draws(1) == draws(1) != draws(2)
    assert sorted(draws(1)) == [b for b in range(1, 40) if b not in (3, 7)]


def test_random_is_uniform() -> None:
    counts: Counter[int] = Counter()
    policy = Pool(Random(5)).policy
    policy.release([1, 2, 3, 4], 0.0)
    for _ in range(4000):
        block = policy.victim(0.0)
        counts[block] += 1
        policy.evicted(block, 0.0)
        policy.release([block], 0.0)
    assert all(850 < counts[block] < 1150 for block in (1, 2, 3, 4)), counts


def test_the_largest_tenant_pays() -> None:
    names = ["small", "big", "big", "big", "new"]
    paths = build_paths(
        WorkloadRequest(
            arrival_s=0.0, input_tokens=1, output_tokens=1, block_ids=np.array([i]), block_tokens=1, tenant=name
        )
        for i, name in enumerate(names)
    )
    out: list[int] = []
    replay(paths, TenantFair(), 4, on_evict=lambda _, node: out.append(node))
    assert out == [1], "the big tenant's oldest, though the small tenant's is older"


def test_the_window_of_w_tinylfu_lets_one_hit_wonders_lose() -> None:
    text = "".join("abcd" * 6) + "".join(chr(200 + i) for i in range(40)) + "abcd"
    lost = victims(WTinyLfu(window=0.2), text, 5)
    assert not set(lost) & set("abcd"), lost
    assert set(victims(Lru(), text, 5)) & set("abcd")


def test_the_frequency_sketch_counts_and_forgets() -> None:
    sketch = FrequencySketch(64)
    keys = [BlockHash(bytes([i])) for i in range(40)]
    for i, key in enumerate(keys):
        for _ in range(i % 5):
            sketch.add(key)
    assert [sketch.estimate(key) for key in keys] == [i % 5 for i in range(40)], "no collision spoils 40 of 64 names"
    for _ in range(30):
        sketch.add(keys[0])
    assert sketch.estimate(keys[0]) == 15
    for _ in range(640):
        sketch.add(keys[1])
    assert sketch.estimate(keys[0]) == 7
