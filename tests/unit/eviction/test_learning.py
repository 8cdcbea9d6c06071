"""Policies that learn from requests: each on a stream made for what it claims, and with its claim undone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.types import Hint
from framework.workload.traces import TraceRequest
from framework_builtin.eviction._returns import Returns, _best_ratio, _falling
from framework_builtin.eviction.hazard import Hazard
from framework_builtin.eviction.hinted import Hinted
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.tail_lru import TailLru
from framework_builtin.eviction.tool_ttl import ToolTtl
from framework_builtin.eviction.workload_aware import WorkloadAware


def conversations(count: int = 900, seed: int = 0, lie: float = 0.0) -> RequestPaths:
    """Half of the conversations ("chat") go on for six turns, half ("once") never; clients say so, some wrongly."""
    draw, due, requests = random.Random(seed), [], []
    for number in range(count):
        goes_on = number % 2 == 0
        start = float(number)
        for turn in range(6 if goes_on else 1):
            due.append((start, number, turn, goes_on))
            start += draw.uniform(20.0, 60.0)
    for arrival, number, turn, goes_on in sorted(due):
        says = goes_on and turn < 5
        if draw.random() < lie:
            says = not says
        ids = [number * 1000 + depth for depth in range(4 + 2 * turn)]
        requests.append(
            TraceRequest(
                arrival_s=arrival, input_tokens=2 * len(ids), output_tokens=1, block_tokens=2, block_ids=np.array(ids),
                category="chat" if goes_on else "once", hint=Hint(continues=0.9 if says else 0.1),
            )
        )  # fmt: skip
    return build_paths(requests)


def hits(policy: EvictionPolicy, paths: RequestPaths, capacity: int = 250) -> int:
    return replay(paths, policy, capacity).hit_blocks


@pytest.mark.parametrize("kind", [Hazard, Hinted, WorkloadAware])
def test_who_learns_which_conversations_go_on_beats_lru(kind: type[EvictionPolicy]) -> None:
    paths = conversations()
    assert hits(kind(), paths) > 1.05 * hits(Lru(), paths)


def test_true_hints_help_and_lies_do_not_harm() -> None:
    paths = conversations()
    plain, lru = hits(Hazard(), paths), hits(Lru(), paths)
    assert hits(Hinted(), paths) > plain
    for lie in (0.5, 1.0):
        assert hits(Hinted(), conversations(lie=lie)) > lru, lie


def test_hazard_without_facts_or_gain_stays_beside_lru() -> None:
    draw = random.Random(1)
    for trial in range(4):
        ids = [[draw.randrange(40) * 100 + depth for depth in range(draw.randint(1, 6))] for _ in range(3000)]
        requests = [
            TraceRequest(arrival_s=float(i), input_tokens=2 * len(path), output_tokens=1, block_tokens=2,
                         block_ids=np.array([path[0] + depth for depth in range(len(path))]))
            for i, path in enumerate(ids)
        ]  # fmt: skip
        paths = build_paths(requests)
        lru, ours = hits(Lru(), paths, 60), hits(Hazard(), paths, 60)
        assert ours >= lru - 0.004 * paths.num_references - 1200, (trial, ours, lru)


def test_the_shadow_counts_what_lru_would_have_hit() -> None:
    class Watched(Hazard):
        def attach(self, blocks):
            super().attach(blocks)
            policies.append(self)

    policies: list[Hazard] = []
    paths = conversations(300)
    found = replay(paths, Lru(), 200).hit_blocks
    replay(paths, Watched(tolerance=0.0), 200)
    assert abs(policies[0]._lru_hits - found) <= 0.02 * found


class Deaf(Hazard):
    """Hazard that takes all requests for alike."""

    def features(self, facts, num_blocks, gap):
        return (0, 0, 0, 0)


class Amnesiac(WorkloadAware):
    """workload_aware that learns nothing of a return."""

    def returned(self, group, age, used):
        pass


class Gullible(Hinted):
    """Hinted that believes every hint."""

    def score(self, kinds, ages, orders):
        said = [self._returns._features[kind - 4][1] % 6 if kind >= 4 else 0 for kind in kinds.tolist()]
        return np.array(said, np.float64)

    def first_score(self, group):
        return float(self.score(np.array([group.kind]), np.zeros(1), np.zeros(1))[0])


def test_mutants_lose_what_the_policies_gain() -> None:
    paths, lied = conversations(), conversations(lie=1.0)
    assert hits(Deaf(), paths) < hits(Hazard(), paths)
    assert hits(Amnesiac(), paths) < hits(WorkloadAware(), paths)
    assert hits(Gullible(), lied) < hits(Lru(), lied) < hits(Hinted(), lied)


def test_tail_lru_spares_the_tail_that_the_budget_recomputes() -> None:
    def request(at: float, name: int, length: int) -> TraceRequest:
        ids = np.arange(length) + 100 * name
        return TraceRequest(arrival_s=at, input_tokens=2 * length, output_tokens=1, block_tokens=2, block_ids=ids)

    paths = build_paths([request(0, 1, 4), request(1, 2, 4), request(2, 3, 2), request(3, 1, 4)])
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
        TraceRequest(arrival_s=at, input_tokens=8, output_tokens=1, block_tokens=2, category=category,
                     block_ids=np.array([name * 10 + depth for depth in range(4)]))
        for at, name, category in sorted(due)
    ]  # fmt: skip
    paths = build_paths(requests)
    assert hits(ToolTtl(), paths, 48) > 2 * hits(Lru(), paths, 48)


@pytest.mark.parametrize("make", [
    lambda: Hazard(tolerance=-1), lambda: Hazard(tolerance=float("nan")), lambda: Hazard(window=3),
    lambda: TailLru(budget_tokens=-1), lambda: TailLru(next_tokens=-1), lambda: WorkloadAware(prior=0),
    lambda: ToolTtl(quantile=2),
])  # fmt: skip
def test_parameters_out_of_bounds_are_refused(make) -> None:
    with pytest.raises(InvalidArgument):
        make()


def test_isotonic_regression_falls_and_keeps_the_weighted_sum() -> None:
    values, weights = np.array([3.0, 1.0, 2.0, 5.0, 0.5]), np.array([1.0, 2.0, 1.0, 1.0, 4.0])
    fitted = _falling(values, weights)
    assert (np.diff(fitted) <= 1e-12).all()
    assert fitted @ weights == pytest.approx(values @ weights)


def test_the_best_ratio_of_a_constant_hazard_is_the_hazard() -> None:
    width = np.array([1.0, 1.0, 2.0, 4.0])
    assert _best_ratio(np.full((1, 4), 0.3), width) == pytest.approx(np.full((1, 4), 0.3))


def test_returns_learn_which_kind_comes_back() -> None:
    returns, draw = Returns(1, 4096), random.Random(0)
    often, never = returns.kind_of(0, (1, 0)), returns.kind_of(0, (2, 0))
    for at in range(0, 2000, 2):
        record = returns.begin(often, float(at))
        returns.begin(never, float(at))
        returns.end(record, at + draw.uniform(1.0, 30.0))
    returns.learn(2000.0)
    scores = returns.scores(np.array([often, never]), np.zeros(2))
    assert scores[0] > 5 * scores[1]
