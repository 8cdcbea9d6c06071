"""Intervals cover, tests do not cry wolf, and copies are no evidence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from framework.report.statistics import FEW, holm, mean_of, paired, resampled, resampled_rates, sign_flip


def test_the_interval_of_paired_differences_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    for count in (3, 6, 20):
        found = [paired(list(0.3 + rng.normal(0, 0.2, size=count)), "seed") for _ in range(400)]
        covered = sum(made.low <= 0.3 <= made.high for made in found)
        assert 370 <= covered <= 392, (count, covered)


def test_the_permutation_test_finds_a_difference_in_noise_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(2)
    for count in (6, 10, 20):
        alarms = sum(sign_flip(rng.normal(0, 1, size=count)) <= 0.05 for _ in range(400))
        assert alarms <= 33, (count, alarms)


def test_the_permutation_test_by_hand() -> None:
    differences = np.array([1.0, 2.0, -0.5, 3.0])
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=4)
    ]
    assert sign_flip(differences) == sum(total >= 5.5 for total in sums) / 16
    assert sign_flip(np.ones(6)) == 2 / 2**6
    assert sign_flip(np.zeros(6)) == 1.0
    assert sign_flip(np.ones(30)) < 0.001


def test_under_six_pairs_there_is_an_interval_and_no_p_value() -> None:
    made = paired([0.1, 0.2, 0.15], "seed")
    assert (made.p, made.count) == (None, 3)
    assert made.low is not None
    assert paired([0.1], "trace").low is None
    assert paired([0.1] * (FEW - 1) + [0.2], "seed").p is not None


def test_equal_runs_are_copies_and_their_mean_has_no_interval() -> None:
    assert mean_of([3.0]).half_width is None
    assert mean_of([0.1] * 7).half_width is None
    assert mean_of([0.1] * 7).value == 0.1, "no rounding of a sum"
    assert mean_of([1.0, 3.0]).half_width == pytest.approx(12.706)


def test_resampled_rates_are_those_of_drawn_units() -> None:
    rng = np.random.default_rng(3)
    wholes = rng.integers(10, 1000, size=60).astype(float)
    better = 0.4 * wholes + rng.normal(0, 5, size=60)
    rates = resampled_rates(np.stack([0.3 * wholes, better]), wholes)
    assert rates[:, 0] == pytest.approx(0.3)
    made = resampled(0.1, rates[:, 1] - rates[:, 0], 60, "session")
    assert made.low < 0.1 < made.high
    assert made.p == pytest.approx(2 / 2001)
    assert resampled(0.1, rates[:, 1] - rates[:, 0], 19, "session").p is None, "19 sessions are too few"
    assert np.array_equal(rates, resampled_rates(np.stack([0.3 * wholes, better]), wholes)), "the same report twice"


def test_holm_s_adjustment_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
