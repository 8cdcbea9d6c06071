"""Intervals cover, tests do not cry wolf, and copies are no evidence."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from framework_report import statistics
from framework_report.statistics import (
    FEW,
    Estimate,
    Floats,
    Ints,
    holm,
    least_p,
    mean_of,
    paired,
    run_length,
    sessions,
    sign_flip,
    swapped,
)


def test_the_interval_of_paired_differences_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    for count in (3, 6):
        found = [paired(list(0.3 + rng.normal(0, 0.2, size=count)), "seed") for _ in range(400)]
        covered = sum(made.interval[0] <= 0.3 <= made.interval[1] for made in found)
        assert 370 <= covered <= 392, (count, covered)


def test_the_permutation_test_finds_a_difference_in_noise_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(2)
    for count in (6, 9):
        alarms = sum(sign_flip(rng.normal(0, 1, size=count)) <= 0.05 for _ in range(300))
        assert alarms <= 25, (count, alarms)


def test_the_permutation_test_by_hand() -> None:
    differences = np.array([1.0, 2.0, -0.5, 3.0])
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=4)
    ]
    assert sign_flip(differences) == sum(total >= 5.5 for total in sums) / 16
    assert [least_p(count) for count in (0, 1, 2, 6)] == [1.0, 1.0, 0.5, sign_flip(np.ones(6))]
    assert sign_flip(np.ones(6)) == 2 / 2**6
    assert sign_flip(np.zeros(6)) == 1.0
    assert sign_flip(np.ones(30)) < 0.001


def test_under_six_pairs_there_is_an_interval_and_no_p_value() -> None:
    made = paired([0.1, 0.2, 0.15], "seed")
    assert (made.p, made.count) == (None, 3)
    assert made.interval is not None
    assert paired([0.1], "trace").interval is None
    assert paired([0.1] * (FEW - 1) + [0.2], "seed").p is not None


def test_equal_runs_are_copies_and_their_mean_has_no_interval() -> None:
    assert mean_of([3.0]).interval is None
    assert mean_of([0.1] * 7).interval is None
    assert mean_of([0.1] * 7).value == 0.1, "no rounding of a sum"
    assert mean_of([-1.0, 1.0]).interval == pytest.approx((-12.706, 12.706), rel=1e-4)


@pytest.mark.parametrize("share", [True, False])
def test_an_interval_of_what_cannot_be_negative_ends_above_zero_and_of_a_share_below_one(share: bool) -> None:
    assert mean_of([1.0, 3.0]).interval == pytest.approx((2 * np.exp(-6.353), 2 * np.exp(6.353)), rel=1e-3)
    for values in ([0.9, 0.99], [0.0, 0.02], [0.0, 1.0], [1e-9, 5e-9, 1e-9]):
        low, high = mean_of(values, share=share).interval or (0, 0)
        assert 0 < low < np.mean(values) < high, (values, low, high)
        assert not share or high < 1, (values, low, high)
    plain = mean_of([0.5, 0.501, 0.502], share=share)
    half = 4.3027 * 0.001 / np.sqrt(3)
    assert plain.interval == pytest.approx((0.501 - half, 0.501 + half), abs=2e-5), "the plain one where that is narrow"


@pytest.mark.parametrize("share", [True, False])
def test_such_an_interval_misses_as_rarely_as_it_says(share: bool) -> None:
    rng = np.random.default_rng(0)
    draw, truth = (rng.beta(2, 6, (2000, 5)), 0.25) if share else (rng.gamma(4, 0.25, (2000, 5)), 1.0)
    ends = [mean_of(list(row), share=share).interval or (0, 0) for row in draw]
    assert 0.93 < np.mean([low <= truth <= high for low, high in ends]) < 0.98


def test_p_and_the_interval_never_contradict_each_other() -> None:
    rng = np.random.default_rng(7)
    shown = 0
    for _ in range(300):
        made = paired(list(rng.normal(0.9, 1.0, size=6)), "trace")
        shown += made.p <= 0.05
        assert made.p > 0.05 or made.interval[0] > 0 or made.interval[1] < 0, made
        assert made.p >= least_p(6)
    assert 30 < shown < 270, shown


def test_the_difference_of_sessions_is_a_ratio_of_sums_with_its_interval() -> None:
    rng = np.random.default_rng(3)
    prompts = rng.integers(10, 1000, size=60).astype(float)
    more = 0.1 * prompts + rng.normal(0, 5, size=60)
    made = sessions([(more, prompts)], "session")
    assert made.value == pytest.approx(more.sum() / prompts.sum())
    assert 0 < made.interval[0] < made.value < made.interval[1] < 0.2
    assert (made.count, made.unit) == (60, "session")
    assert made.p <= 0.001
    assert made == sessions([(more, prompts)], "session"), "the same report twice"
    few = sessions([(more[:39], prompts[:39])], "session")
    assert few.p is None, "39 sessions are too few"
    assert few.interval is not None


def test_sessions_are_drawn_within_their_trace_and_the_smallest_trace_decides() -> None:
    rng = np.random.default_rng(4)
    large, small = ((0.1 + rng.normal(0, 0.05, size=size), np.ones(size)) for size in (400, 50))
    made = sessions([large, small], "session")
    rates = [parts.mean() for parts, _ in (large, small)]
    assert made.value == pytest.approx(np.mean(rates)), "each trace counts once, whatever its size"
    error = np.sqrt(sum(parts.var() / len(parts) for parts, _ in (large, small))) / 2
    assert made.interval[1] - made.interval[0] == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert made.count == 450
    assert sessions([large, (small[0][:39], small[1][:39])], "session").p is None


def test_requests_that_correlate_are_merged_into_runs_that_do_not() -> None:
    lengths = {}
    for stretch in (1, 10, 100):
        found = [run_length(correlated(seed, 20_000, stretch), np.ones(20_000)) for seed in range(9)]
        lengths[stretch] = float(np.median(found))
    assert lengths[1] <= 40, "20,000 are merged into a thousand at most, or a few"
    assert 30 <= lengths[10] <= 400, lengths
    assert 300 <= lengths[100] <= 1667, lengths
    slow = correlated(0, 4000, 2000)
    made = sessions([(slow + 0.5, np.ones(4000))], "request")
    assert (made.p, made.unit.partition(" of ")[0]) == (None, "run"), made
    assert made.count < 12, "a record in which all hangs together says nothing"


def correlated(seed: int, count: int, stretch: int) -> np.ndarray:
    """(count,) of variance 1 about 0, of which each correlates with the `stretch` around it."""
    sums = np.cumsum(np.random.default_rng(seed).normal(size=count + stretch))
    return (sums[stretch:] - sums[:-stretch]) / np.sqrt(stretch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "stretch", "sizes"),
    [(60, 1, 1.0), (400, 1, 1.0), (6_000, 10, 0.0), (24_000, 100, 0.0), (60_000, 500, 0.0)],
)
def test_a_null_is_called_better_as_rarely_as_5_percent_says(
    count: int, stretch: int, sizes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions have log-normal sizes, and the differences of requests correlate over 10, 100 and 500 of them."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1500)
    monkeypatch.setattr(statistics, "_FLIPS", 1999)
    rng = np.random.default_rng(1)
    tested = alarms = 0
    for seed in range(600):
        prompts = rng.lognormal(0, sizes, size=count)
        made = sessions([(prompts * correlated(seed, count, stretch), prompts)], "request")
        tested += made.p is not None
        alarms += made.p is not None and made.p <= 0.05
    assert tested >= 540, tested
    assert 0.03 <= alarms / 600 <= 0.07, alarms / 600


@pytest.mark.slow
@pytest.mark.parametrize("count", [statistics.FEW_SESSIONS, 80])
def test_the_interval_of_sessions_of_log_normal_sizes_misses_as_rarely_as_it_says(count: int) -> None:
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(500):
        prompts = rng.lognormal(0, 1, size=count)
        made = sessions([(prompts * rng.normal(0.1, 0.3, size=count), prompts)], "session")
        missed += not made.interval[0] <= 0.1 <= made.interval[1]
    assert missed / 500 <= 0.085, missed / 500


def p99(values: Floats, places: Ints) -> float:
    return float(np.percentile(values, 99))


def fairness(values: Floats, places: Ints) -> float:
    """Jain's index over four tenants, of the requests' mean values."""
    tenants = places % 4
    means = np.bincount(tenants, weights=values) / np.maximum(1, np.bincount(tenants))
    return float(means.sum() ** 2 / (len(means) * (means**2).sum()))


def compare(challenger: Floats, baseline: Floats, units: Ints, of: Callable[[Floats, Ints], float] = p99) -> Estimate:
    return swapped(challenger, baseline, units, of, "session")


@pytest.mark.parametrize("of", [p99, fairness])
def test_a_tail_or_an_index_of_two_equal_samples_is_called_different_as_rarely_as_5_percent_says(
    of: Callable[[Floats, Ints], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_SWAPS", 199)
    rng, alarms, judged = np.random.default_rng(5), 0, 0
    units = np.repeat(np.arange(60), 3)
    for _ in range(50):
        of_session = rng.lognormal(0.0, 1.0, size=60)[units]
        one, other = (of_session * rng.lognormal(0.0, 0.5, size=len(units)) for _ in range(2))
        made = compare(one, other, units, of)
        if made.p is None or made.interval is None:  # neighbours that correlate by chance leave too few runs
            continue
        judged += 1
        alarms += made.p < 0.05
        assert not (made.p < 0.05 and made.interval[0] <= 0 <= made.interval[1]), made
    assert judged > 35
    assert alarms <= 5, alarms


def test_a_tail_that_one_session_makes_is_not_shown_and_one_of_all_sessions_is() -> None:
    rng, units = np.random.default_rng(6), np.repeat(np.arange(60), 3)
    baseline = rng.lognormal(0.0, 0.5, size=len(units))
    one_session = np.where(units == 17, 100.0, baseline)
    made = compare(one_session, baseline, units)
    assert made.value > 90, "the percentile is that session's"
    assert made.p is not None
    assert made.p > 0.3, made
    late = compare(3 * baseline, baseline, units)
    assert late.p is not None
    assert late.p < 0.005
    assert late.interval is not None
    assert late.value == pytest.approx(2 * p99(baseline, units))
    assert 0 < late.interval[0] <= late.value <= late.interval[1]


def test_a_tail_of_few_sessions_has_no_p_and_of_equal_values_no_difference() -> None:
    rng, units = np.random.default_rng(7), np.repeat(np.arange(39), 3)
    values = rng.lognormal(0.0, 0.5, size=len(units))
    made = compare(3 * values, values, units)
    assert (made.p, made.interval, made.count, made.missing) == (None, None, 39, 1)
    units = np.repeat(np.arange(40), 3)
    values = rng.lognormal(0.0, 0.5, size=len(units))
    assert compare(values, values.copy(), units) == Estimate(
        value=0.0, interval=(0.0, 0.0), p=1.0, count=40, unit="session"
    )


def test_holm_s_adjustment_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
