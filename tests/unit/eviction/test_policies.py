"""Each published policy does what its paper says, on histories short enough to check by hand."""

from __future__ import annotations

from typing import Any

import pytest
from eviction_histories import evicted, victims

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.clock import Clock
from framework_builtin.eviction.cost_aware import CostAware
from framework_builtin.eviction.depth_aware import DepthAware
from framework_builtin.eviction.gdsf import Gdsf
from framework_builtin.eviction.leaf_lru import LeafLru
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lhd import Lhd
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
from framework_builtin.eviction.w_tinylfu import WTinyLfu


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
