"""Least hit density: its model, its classes, its draws and its explorers."""

from __future__ import annotations

import copy
from typing import Any

from eviction_histories import Pool, evicted, victims
from replay_helpers import workload

from framework_builtin.eviction.lhd import _AGES, _CLASS_OF, Lhd, _Model
from framework_builtin.eviction.lru import Lru
from framework_cache_only.reference import replay


def lhd(samples: int = 32, **attributes: Any) -> Lhd:
    policy = Lhd(samples)
    vars(policy).update(attributes)
    return policy


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
    policy = lhd(explorers=0)
    pool = Pool(policy)
    pool.offer_each(1, 2, 3)
    pool.use(1, 3.0)
    assert pool.drain(4.0) == [2, 3, 1], "before anything is learnt the oldest of those never hit goes first"


def test_lhd_learns_that_a_loop_comes_back_late() -> None:
    paths = workload([[i % 100] for i in range(8_000)])
    rates = {interval: replay(paths, lhd(interval=interval), 80).block_hit_rate for interval in (500, 10**9)}
    assert replay(paths, Lru(), 80).hit_blocks == 0
    assert rates[500] > 0.7, "the optimum hits 0.8; what is kept longest is hit next"
    assert rates[10**9] < 0.1, "without a model, nothing of this"


def test_lhd_lets_the_deepest_of_equal_ages_go_first() -> None:
    requests = [list(range(8)), *([100 + i] for i in range(1_003))]
    assert evicted(lhd(9_000, explorers=0), requests, 1_003) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_lhd_draws_from_its_seed() -> None:
    text = "".join(chr(97 + i * i % 23) for i in range(400))
    assert victims(Lhd(seed=1), text, 9) == victims(Lhd(seed=1), text, 9)
    assert victims(Lhd(seed=1, samples=2), text, 9) != victims(Lhd(seed=2, samples=2), text, 9)


def test_explorers_outlive_denser_blocks_within_their_budget() -> None:
    policy = lhd(explorers=0.5)
    pool = Pool(policy)
    policy._draw = lambda: 0.0  # every access explores while the budget of 4 lasts
    pool.offer_each(1, 2, 3, 4, 5, 6)
    assert [policy._explores[block] for block in range(1, 7)] == [1, 1, 1, 1, 0, 0]
    policy._draw = iter([0.99, 0.7, 0.3, 0.1] * 99).__next__
    policy._samples = 32
    assert set(pool.drain(9.0)[:2]) == {5, 6}
    assert policy._budget == 4, "evicted explorers give their place back"


def test_a_copy_of_the_model_learns_for_itself() -> None:
    model = _Model()
    before = bytes(model.densities)
    copied = copy.deepcopy(model)
    copied.hit_at, copied.evicted_at = [5] * 100, [9] * 300
    copied.learn()
    assert bytes(model.densities) == before
    assert bytes(copied.densities) != before
