"""Each proposed policy does what its page says, on histories short enough to check by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eviction_histories import evicted
from learning_streams import conversations, hits, requests_of

from framework.errors import InvalidArgument
from framework.interfaces.workload import WorkloadRequest
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay
from framework_research.hazard import Hazard
from framework_research.proposed import DensestInterior, HitsPerToken, Lease, NeverHitFirst
from framework_research.tail_lru import TailLru
from framework_research.tool_ttl import ToolTtl


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hazard(tolerance=-1), "tolerance"),
        (lambda: Hazard(tolerance=float("nan")), "tolerance"),
        (lambda: Hazard(window=3), "window"),
        (lambda: TailLru(budget_tokens=-1), "tokens"),
        (lambda: TailLru(next_tokens=-1), "tokens"),
        (lambda: ToolTtl(quantile=2), "quantile"),
        (lambda: Lease(-1), "length"),
    ],
)
def test_senseless_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_the_shadow_counts_what_lru_would_have_hit() -> None:
    class Watched(Hazard):
        def returned(self, group, age, used):
            counted.append(group.shadow_hits)
            super().returned(group, age, used)

    counted: list[int] = []
    paths = conversations(300)
    found = replay(paths, Lru(), 200).hit_blocks
    replay(paths, Watched(tolerance=0.0), 200)
    assert abs(sum(counted) - found) <= 0.02 * found


def test_tail_lru_spares_the_tail_that_the_budget_recomputes() -> None:
    lengths = ((1, 4), (2, 4), (3, 2), (1, 4))
    paths = requests_of([(float(at), [100 * name + d for d in range(n)]) for at, (name, n) in enumerate(lengths)])
    assert replay(paths, Lru(), 8).request_hits.tolist() == [0, 0, 0, 2]
    gone: list[int] = []
    found = replay(paths, TailLru(budget_tokens=4, next_tokens=2), 8, on_evict=lambda request, node: gone.append(node))
    assert gone[:2] == [3, 7], "one block of two tokens of each prompt can be spared"
    assert found.request_hits.tolist() == [0, 0, 0, 3]
    assert replay(paths, TailLru(budget_tokens=0), 8).request_hits.tolist() == [0, 0, 0, 2], "no budget: LRU"


def test_tool_ttl_keeps_a_kind_for_as_long_as_its_calls_take() -> None:
    due = []
    for call in range(400):
        due += [(10.0 * call, call, "tool"), (10.0 * call + 35.0, call, "tool")]
        due += [(10.0 * call + step, 10_000 + 10 * call + step, "once") for step in (1, 2, 3, 4)]
    requests = [
        WorkloadRequest(arrival_s=at, input_tokens=8, output_tokens=1, block_tokens=2, category=category,
                     block_ids=np.array([name * 10 + depth for depth in range(4)]))
        for at, name, category in sorted(due)
    ]  # fmt: skip
    paths = build_paths(requests)
    assert hits(ToolTtl(), paths, 48) > 2 * hits(Lru(), paths, 48)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (NeverHitFirst(), [31, 30]),  # 10 was hit; those behind are younger
        (Lease(5), [31, 30]),  # 10's lease ends at 7; 30 was used at 3 and has none
        (Lease(0), [10, 31]),  # least recently used
        (HitsPerToken(), [31, 30]),  # a stretch of two without a hit, deepest first; 10: one hit for one block
    ],
)
def test_what_was_hit_stays_as_long_as_the_rule_says(policy, expected: list[int]) -> None:
    assert evicted(policy, [[10], [10], [30, 31], [40], [50]], 3)[: len(expected)] == expected


def test_the_densest_interior_goes_first_and_the_ends_stay() -> None:
    found = evicted(DensestInterior(), [[0, 1, 2, 3, 4, 5, 6], *([100 + at] for at in range(7))], 7)
    assert found[:5] == [5, 3, 1, 2, 4], found
    assert set(found[5:]) == {0, 6}
