"""Each published policy does what its paper says, on histories short enough to check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from replay_helpers import random_requests, workload

from framework.errors import InvalidArgument, NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.types import BlockHash, BlockId
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.clock import Clock
from framework_builtin.eviction.cost_aware import CostAware
from framework_builtin.eviction.depth_aware import DepthAware
from framework_builtin.eviction.gdsf import Gdsf
from framework_builtin.eviction.leaf_lru import LeafLru
from framework_builtin.eviction.lecar import LeCaR
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lhd import _AGES, _CLASS_OF, Lhd, _Model
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.lru_k import LruK
from framework_builtin.eviction.mru import Mru
from framework_builtin.eviction.priority import Priority
from framework_builtin.eviction.s3fifo import S3Fifo
from framework_builtin.eviction.sieve import Sieve
from framework_builtin.eviction.slru import Slru
from framework_builtin.eviction.tenant_fair import TenantFair
from framework_builtin.eviction.ttl import Ttl
from framework_builtin.eviction.two_q import TwoQ
from framework_builtin.eviction.w_tinylfu import FrequencySketch, WTinyLfu

ZOO = (
    Arc, Belady, Clock, CostAware, DepthAware, Gdsf, LeafLru, LeCaR, LengthAware, Lfu, Lhd, LruK, Mru, Priority, S3Fifo,
    Sieve, Slru, TenantFair, Ttl, TwoQ, WTinyLfu,
)  # fmt: skip


def evicted(policy: EvictionPolicy, requests: Sequence[Sequence[int]], capacity: int, **options: Any) -> list[int]:
    """Last id of each block evicted, in order; requests must name each block by an id of its own."""
    names: list[int] = []
    for ids in requests:
        names.extend(block for block in ids if block not in names)
    out: list[int] = []
    replay(workload(requests), policy, capacity, on_evict=lambda _, node: out.append(names[node]), **options)
    return out


def flat(text: str) -> list[list[int]]:
    """One request of one block a letter."""
    return [[ord(letter)] for letter in text]


def victims(policy: EvictionPolicy, text: str, capacity: int) -> str:
    return "".join(map(chr, evicted(policy, flat(text), capacity)))


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


def test_aging_lets_go_of_what_was_popular_long_ago() -> None:
    text = "a" * 9 + "bcdefghijklmnopqrstuvwxyzABCDEFGH"
    assert "a" not in victims(Lfu(), text, 3)
    assert "a" in victims(Lfu(aged=True), text, 3)


def test_a_name_remembered_by_2q_enters_the_main_queue() -> None:
    policy = TwoQ(newcomers=0.25, ghosts=0.5)
    assert victims(policy, "abcde" + "a" + "fghij", 4) == "abcdefg", "a came back as a ghost and outlives b to g"


def test_a_name_remembered_by_s3fifo_skips_the_small_queue() -> None:
    history = "abcdefghijk" + "a" + "lmnopqrst"
    assert "a" in victims(S3Fifo(), history, 10)
    assert victims(S3Fifo(), history, 10).count("a") == 1, "the second time it entered the main queue"
    assert victims(S3Fifo(ghosts=0), history + "uvw", 10).count("a") >= 1


def test_lru_k_continues_the_history_of_a_name_it_remembers() -> None:
    history = "abcd" + "a" + "xy"
    assert "a" not in victims(LruK(history=2), history, 3)[1:], "its second use, across an eviction, counts"
    assert victims(LruK(history=0), history, 3) == "abcd"


def test_arc_moves_its_target_by_what_comes_back() -> None:
    policy = Arc()
    assert victims(policy, "aabbc", 4) == ""
    victims_before = victims(Arc(), "abcdefabcd", 4)
    assert victims_before.startswith("ab")
    replay(workload(flat("abcde" * 6)), policy := Arc(), 4)
    assert 0 <= policy._target <= 4


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


def test_lecar_shifts_its_weight_towards_the_expert_that_was_right() -> None:
    policy = LeCaR(seed=1)
    pattern = ("a" * 3 + "b" * 3 + "".join(chr(1000 + i) for i in range(8))) * 30
    replay(workload(flat(pattern)), policy, 4)
    assert 0.01 <= policy._lru_weight <= 0.99
    assert policy._lru_weight != 0.5
    assert victims(LeCaR(seed=1), pattern, 4) == victims(LeCaR(seed=1), pattern, 4)


def test_the_hit_density_is_expected_hits_over_expected_time() -> None:
    model = _Model()
    before = model.densities[5 * _AGES]
    model.hit_at += [2, 2, 0]  # class 0: two hits at age 2, one at once
    model.evicted_at += [4]
    model.learn()
    # from age 0 on 3 hits in 3 + 3 + 1 + 5 ages, from 1 on 2 hits in 2 + 2 + 4, from 2 on in 1 + 1 + 3, then none
    assert [round(model.densities[age], 6) for age in range(6)] == [0.25, 0.25, 0.4, 0, 0, 0]
    assert model.densities[5 * _AGES] == before, "a class without events keeps its own"
    model.hit_at += [2] * 30
    model.learn()
    assert round(model.densities[0], 6) == round(29.43 / 90.72, 6), "what happened lately weighs more"


def test_lhd_puts_blocks_hit_soon_in_a_class_of_their_own() -> None:
    assert [_CLASS_OF[age] for age in (0, 1, _AGES // 4, _AGES // 2, _AGES - 1, _AGES)] == [15, 15, 2, 1, 1, 0]
    policy = Lhd(explorers=0)
    pool = Pool(policy)
    for time, block in enumerate((1, 2, 3)):
        pool.offer(block, float(time))
    policy.pin([BlockId(1)], 3.0)
    policy.hit([BlockId(1)], 3.0)
    policy.release([BlockId(1)], 3.0)
    assert pool.drain(4.0) == [2, 3, 1], "before anything is learnt the oldest of those never hit goes first"


def test_lhd_learns_that_a_loop_comes_back_late() -> None:
    paths = workload([[i % 100] for i in range(8_000)])
    rates = {interval: replay(paths, Lhd(interval=interval), 80).block_hit_rate for interval in (500, 10**9)}
    assert replay(paths, Lru(), 80).hit_blocks == 0
    assert rates[500] > 0.7, "the optimum hits 0.8; what is kept longest is hit next"
    assert rates[10**9] < 0.1, "without a model, nothing of this"


def test_lhd_lets_the_deepest_of_equal_ages_go_first() -> None:
    requests = [list(range(8)), *([100 + i] for i in range(1_003))]
    assert evicted(Lhd(samples=9_000, explorers=0), requests, 1_003) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_lhd_draws_from_its_seed() -> None:
    text = "".join(chr(97 + i * i % 23) for i in range(400))
    assert victims(Lhd(seed=1), text, 9) == victims(Lhd(seed=1), text, 9)
    assert victims(Lhd(seed=1, samples=2), text, 9) != victims(Lhd(seed=2, samples=2), text, 9)


def test_explorers_outlive_denser_blocks_within_their_budget() -> None:
    policy = Lhd(explorers=0.5)
    pool = Pool(policy)
    policy._draw = lambda: 0.0  # every access explores while the budget of 4 lasts
    for time, block in enumerate((1, 2, 3, 4, 5, 6)):
        pool.offer(block, float(time))
    assert [policy._explores[block] for block in range(1, 7)] == [1, 1, 1, 1, 0, 0]
    policy._draw = iter([0.99, 0.7, 0.3, 0.1] * 99).__next__
    policy._samples = 32
    assert set(pool.drain(9.0)[:2]) == {5, 6}
    assert policy._budget == 4, "evicted explorers give their place back"


@pytest.mark.parametrize("expert", ["lru", "lfu"])
def test_lecar_trusts_an_expert_less_after_its_victim_came_back(expert: str) -> None:
    policy = LeCaR()
    pool = Pool(policy)
    for time, block in enumerate((1, 2, 3)):
        pool.offer(block, float(time))
    policy.pin([BlockId(1)], 3.0)
    policy.hit([BlockId(1)], 3.0)
    policy.release([BlockId(1)], 3.0)
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


def test_the_largest_tenant_pays() -> None:
    names = ["small", "big", "big", "big", "new"]
    paths = build_paths(
        TraceRequest(
            arrival_s=0.0, input_tokens=1, output_tokens=1, block_ids=np.array([i]), block_tokens=1, tenant=name
        )
        for i, name in enumerate(names)
    )
    out: list[int] = []
    replay(paths, TenantFair(), 4, on_evict=lambda _, node: out.append(node))
    assert out == [1], "the big tenant's oldest, though the small tenant's is older"


class Pool:
    """A few candidates with facts that a test sets."""

    def __init__(self, policy: EvictionPolicy, num_blocks: int = 8) -> None:
        rows = num_blocks + 1
        self.priority, self.last_access, self.children = [0] * rows, [0] * rows, [0] * rows
        zero, self.policy = [0] * rows, policy
        policy.attach(
            BlockView(
                depth=zero, num_tokens=zero, admitted=zero, last_access=self.last_access, hits=zero,
                priority=self.priority, tenant=zero, children=self.children, next_use=[float("inf")] * rows,
                key=[BlockHash(bytes([i])) for i in range(rows)],
            )
        )  # fmt: skip

    def offer(self, block: int, now: float, priority: int = 0) -> None:
        self.priority[block], self.last_access[block] = priority, int(now)
        self.policy.admit([BlockId(block)], now)
        self.policy.release([BlockId(block)], now)

    def drain(self, now: float) -> list[int]:
        order = []
        while True:
            try:
                block = self.policy.victim(now)
            except NoCandidate:
                return order
            self.policy.evicted(block, now)
            order.append(int(block))


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


def test_a_leaf_goes_before_its_parent_however_old_the_parent_is() -> None:
    pool = Pool(LeafLru())
    for time, block in enumerate((1, 2, 3)):
        pool.offer(block, float(time))
    pool.children[1] = 1
    assert pool.policy.victim(9.0) == 2
    pool.policy.evicted(BlockId(2), 9.0)
    pool.children[1] = 0
    assert pool.drain(9.0) == [1, 3]
    stuck = Pool(LeafLru())
    stuck.offer(1, 0.0)
    stuck.children[1] = 1
    assert stuck.drain(1.0) == [1], "with inner blocks only, the oldest of them goes"


@pytest.mark.parametrize("policy", ZOO, ids=lambda policy: policy.__name__)
def test_every_policy_replays_trees_and_never_beats_the_infinite_cache(policy: type[EvictionPolicy]) -> None:
    for seed in range(6):
        paths: RequestPaths = workload(random_requests(seed, count=150, width=3, longest=5))
        for capacity in (1, 3, 10, 40):
            for options in ({}, {"leaf_first": True}, {"bypass": True}):
                first, second = (replay(paths, policy(), capacity, **options) for _ in range(2))
                assert first.request_hits.tolist() == second.request_hits.tolist(), (
                    "the same history, evicted otherwise"
                )
                assert (first.request_hits <= paths.infinite_hits).all()
                assert first.admitted - first.evictions <= capacity


@pytest.mark.parametrize("policy", ZOO, ids=lambda policy: policy.__name__)
def test_asking_twice_gives_one_answer(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy())
    for time, block in enumerate((3, 1, 4, 2, 5)):
        pool.offer(block, float(time))
    while True:
        try:
            block = pool.policy.victim(9.0)
        except NoCandidate:
            break
        assert pool.policy.victim(9.0) == block
        pool.policy.evicted(block, 9.0)


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
        (lambda: LeCaR(discount=1), "lecar needs"),
        (lambda: Lhd(samples=0), "lhd needs"),
        (lambda: Lhd(interval=0), "lhd needs"),
        (lambda: Lhd(explorers=1), "lhd needs"),
        (lambda: Ttl(ttl=0), "ttl.ttl"),
        (lambda: Priority(retention=-1), "priority.retention"),
    ],
)
def test_senseless_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()
