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
from framework_builtin.eviction._returns import Returns, _best_ratio, _falling, _times_odds
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


def requests_of(paths: list[tuple[float, list[int]]]) -> RequestPaths:
    """Requests of these arrivals and block ids, of which nothing else is known."""
    return build_paths(
        TraceRequest(arrival_s=at, input_tokens=2 * len(ids), output_tokens=1, block_tokens=2, block_ids=np.array(ids))
        for at, ids in sorted(paths, key=lambda due: due[0])
    )


def one_hot_set_after_another(draw: random.Random) -> RequestPaths:
    """What is popular moves on every 500 requests: frequency and gaps of the past mislead."""
    paths = []
    for at in range(4000):
        name = at // 500 * 50 + int(abs(draw.gauss(0, 15)))
        paths.append((float(at), [name * 100 + depth for depth in range(1 + name % 9)]))
    return requests_of(paths)


def sessions_with_a_shared_opening(draw: random.Random, pause: float, steps: tuple[int, int]) -> RequestPaths:
    """Agents: contexts that grow step by step behind one of four openings."""
    paths = []
    for session in range(120):
        at, ids = draw.uniform(0, 3000), [session % 4 * 10**7 + depth for depth in range(12)]
        for _ in range(draw.randint(*steps)):
            start = 10**8 + session * 1000 + len(ids)
            ids = ids + list(range(start, start + draw.randint(1, 6)))
            paths.append((at, ids))
            at += draw.lognormvariate(np.log(pause), 1)
    return requests_of(paths)


def signs_that_swap_their_meaning(draw: random.Random) -> RequestPaths:
    """Long first prompts go on and short ones do not, then the other way round, by turns."""
    paths = []
    for number in range(1500):
        long = number % 2 == 0
        at, ids = 3.0 * number, [number * 1000 + depth for depth in range(10 if long else 5)]
        for _ in range(4 if long == (number // 300 % 2 == 0) else 1):
            paths.append((at, ids))
            ids = [*ids, ids[-1] + 1]
            at += draw.uniform(30, 90)
    return requests_of(paths)


def the_latest_come_back(draw: random.Random) -> RequestPaths:
    """A stack: who was here last returns most likely, so LRU is nearly optimal."""
    paths, recent = [], []
    for at in range(3000):
        name = at
        if recent and draw.random() < 0.6:
            name = recent.pop(-1 - min(int(draw.expovariate(1 / 3)), len(recent) - 1))
        recent.append(name)
        paths.append((float(at), [name * 100 + depth for depth in range(6)]))
    return requests_of(paths)


UNSEEN = {
    "hot sets": one_hot_set_after_another,
    "chats": lambda draw: sessions_with_a_shared_opening(draw, 20.0, (1, 6)),
    "agents": lambda draw: sessions_with_a_shared_opening(draw, 12.0, (5, 30)),
    "swapped signs": signs_that_swap_their_meaning,
    "stack": the_latest_come_back,
}


@pytest.mark.parametrize("kind", [Hazard, Hinted])
@pytest.mark.parametrize("name", UNSEEN)
def test_on_no_stream_is_it_half_a_point_below_lru(name: str, kind: type[EvictionPolicy]) -> None:
    paths = UNSEEN[name](random.Random(1))
    for part in (0.01, 0.035, 0.1, 0.2, 0.5):
        capacity = max(1, round(part * paths.num_nodes))
        lost = hits(Lru(), paths, capacity) - hits(kind(), paths, capacity)
        assert 100 * lost / paths.num_references < 0.5, (part, lost, paths.num_references)


def test_without_its_guard_it_may_be_half_a_point_below_lru() -> None:
    paths, worst = one_hot_set_after_another(random.Random(1)), 0.0
    for part in (0.01, 0.035, 0.1, 0.2, 0.5):
        capacity = round(part * paths.num_nodes)
        lost = hits(Lru(), paths, capacity) - hits(Hazard(tolerance=1.0), paths, capacity)
        worst = max(worst, 100 * lost / paths.num_references)
    assert worst > 0.5, "else the streams above prove nothing"


def test_blocks_that_the_cache_lost_are_not_taken_for_new_ones() -> None:
    seen: list[tuple[int, int]] = []

    class Watched(Hazard):
        def group(self, blocks, facts, gap):
            seen.append((self.num_fresh, self._turn(facts)))
            super().group(blocks, facts, gap)

    others = [(float(at), [at * 100 + depth for depth in range(6)]) for at in range(1, 4)]
    paths = requests_of([(0.0, [1, 2, 3]), *others, (5.0, [1, 2, 3, 4])])
    assert replay(paths, Watched(), 8).request_hits.tolist() == [0, 0, 0, 0, 0], "all of it was evicted"
    assert seen == [(3, 0), (6, 0), (6, 0), (6, 0), (1, 1)]


def test_a_category_tells_who_goes_on() -> None:
    """Prompts of one size and turn, distinguished by what clients call them alone."""

    class Blind(Hazard):
        def _category(self, name):
            return 0

    draw, due = random.Random(0), []
    for number in range(900):
        chat = draw.random() < 0.5
        start = [number * 100 + depth for depth in range(6)]
        due.append((float(number), start, chat))
        if chat:
            due.append((number + draw.uniform(30, 60), [*start, number * 100 + 50], chat))
    paths = build_paths(
        TraceRequest(arrival_s=at, input_tokens=2 * len(ids), output_tokens=1, block_tokens=2, block_ids=np.array(ids),
                     category="chat" if chat else "once")
        for at, ids, chat in sorted(due, key=lambda row: row[0])
    )  # fmt: skip
    assert hits(Hazard(), paths) > 1.1 * hits(Blind(), paths) > 0


def test_a_foretold_return_multiplies_the_odds_at_every_age() -> None:
    hazard, width = np.array([[0.02, 0.01, 0.005]]), np.array([10.0, 20.0, 40.0])
    ahead = np.cumsum((hazard * width)[:, ::-1], axis=1)[:, ::-1]
    chance = -np.expm1(-ahead)
    times = _times_odds(hazard, chance, np.array([4.0])) / hazard
    assert (times < 4).all(), "odds of four to one are less than four times the chance"
    assert (times > 1).all()
    assert (np.diff(times) > 0).all(), "the smaller the chance left, the more the odds count in full"
    assert _times_odds(hazard, chance, np.array([1.0])) == pytest.approx(hazard)


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
        return (0, 0, 0, 0, 0)


class Amnesiac(WorkloadAware):
    """workload_aware that learns nothing of a return."""

    def returned(self, group, age, used):
        pass


class Gullible(Hinted):
    """Hinted that believes every hint."""

    def score(self, kinds, ages, orders):
        foretold = [self._returns._foretold[kind - 4] if kind >= 4 else 0 for kind in kinds.tolist()]
        return np.array(foretold, np.float64)

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
