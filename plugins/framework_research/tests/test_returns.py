"""The online estimate of returns: isotonic, its index, and which kind comes back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from framework_research._returns import Returns, _best_ratio, _falling, _times_odds


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


def test_a_foretold_return_multiplies_the_odds_at_every_age() -> None:
    hazard, width = np.array([[0.02, 0.01, 0.005]]), np.array([10.0, 20.0, 40.0])
    ahead = np.cumsum((hazard * width)[:, ::-1], axis=1)[:, ::-1]
    chance = -np.expm1(-ahead)
    times = _times_odds(hazard, chance, np.array([4.0])) / hazard
    assert (times < 4).all(), "odds of four to one are less than four times the chance"
    assert (times > 1).all()
    assert (np.diff(times) > 0).all(), "the smaller the chance left, the more the odds count in full"
    assert _times_odds(hazard, chance, np.array([1.0])) == pytest.approx(hazard)


def test_what_comes_back_at_the_same_tick_does_not_make_new_groups_look_better_than_they_are() -> None:
    returns, draw = Returns(1, 4096), random.Random(0)
    kind = returns.kind_of(0, (1, 0))
    for at in range(0, 3000, 3):  # ten groups at each tick, one of which is used again at once
        records = [returns.begin(kind, float(at)) for _ in range(10)]
        returns.end(records[0], float(at))
        if draw.random() < 0.5:
            returns.end(records[1], at + draw.uniform(100.0, 900.0))
    returns.learn(3000.0)
    at_once, later = returns.scores(np.array([kind, kind]), np.array([0.0, 3.0]))
    assert returns.first_score(kind) == at_once
    assert at_once < 2 * later


def test_what_is_watched_no_longer_counts_as_neither_returned_nor_lost() -> None:
    def rate(stopped: bool) -> float:
        returns = Returns(1, 4096)
        kind = returns.kind_of(0, (1, 0))
        for at in range(1000):
            record = returns.begin(kind, float(at))
            if at % 2:
                returns.end(record, at + 10.0)
            elif stopped:
                returns.stop(record, at + 1.0)
        returns.learn(2000.0)
        return float(returns.scores(np.array([kind]), np.array([2.0]))[0])

    assert rate(stopped=True) > 1.5 * rate(stopped=False) > 0
    Returns(1, 64).stop(-1, 5.0)  # no record, no error


def test_a_pause_of_days_does_not_make_all_ages_alike() -> None:
    returns = Returns(1, 4096)
    kind = returns.kind_of(0, (1, 0))
    for at in range(1000):  # half are used again after 4 s, the others never
        record = returns.begin(kind, float(at))
        if at % 2:
            returns.end(record, at + 4.0)
    returns.begin(kind, 500_000.0)
    returns.learn(500_000.0)
    young, old = returns.scores(np.array([kind, kind]), np.array([2.0, 60.0]))
    assert young > 20 * old > 0, (young, old)


def test_who_often_comes_back_soon_need_not_come_back_late() -> None:
    returns, draw = Returns(1, 4096), random.Random(0)
    soon, late = returns.kind_of(0, (0, 1)), returns.kind_of(0, (0, 2))
    for at in range(1500):
        for kind, share in ((soon, 0.6), (late, 0.05)):  # of the others, 3 in 10 come back late, whatever their kind
            record, fast = returns.begin(kind, float(at)), draw.random() < share
            if fast or draw.random() < 0.3:
                returns.end(record, at + (draw.uniform(1.0, 4.0) if fast else draw.uniform(100.0, 400.0)))
    returns.learn(2000.0)
    young, old = (returns.scores(np.array([soon, late]), np.full(2, age)) for age in (0.0, 150.0))
    assert young[0] > 3 * young[1], young
    assert 0.7 < old[0] / old[1] < 1.4, old
