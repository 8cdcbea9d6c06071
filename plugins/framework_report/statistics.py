"""Means, paired differences and what they show: SciPy's permutation test and bootstrap over independent units.

NOTE 1: p is the larger of an exact sign-flip test's and of the test that the interval inverts, so that a difference is
never shown while its interval holds 0. The interval of a few pairs is Student's t; that of sessions the studentised
bootstrap: over 20 to 40 sessions of log-normal sizes it misses least of all that SciPy offers (BCa misses most).
NOTE 2: T sign flips cannot give a p below 2 / 2^T: see `least_p`.
NOTE 3: requests that follow each other share what the cache holds. They are merged into runs so long that neighbouring
runs no longer correlate (`run_length`); a record that has too few of them says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEW = 6
"""Pairs from which one sign flip test can reach 5 %."""
FEW_SESSIONS, FEW_RUNS = 40, 12
"""Sessions or requests, and runs of them, under which a trace says nothing."""
RESAMPLES = 4000
_FLIPS = 9999  # exact up to 13 pairs
_SWAPS = 1999  # of a statistic that is not a ratio of sums: each is computed by itself
_MOST_UNITS = 500
_BATCH = 500
_NEIGHBOURS_DIFFER = 1.645  # standard errors of a correlation between neighbouring runs
_RUNS_FOR_A_CORRELATION = 10
_TIMES_LONGER = 6  # runs than the longest at which neighbours correlate: 1/20 of the correlation is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean, a mean paired difference (challenger minus baseline) or a rate, and what is known of it.

    Attributes:
        interval: ends of the 95 % interval; None where nothing independent repeats.
        p: two-sided, of a difference; None where evidence is too little for a test.
        count: independent observations, of what `unit` names: trace, seed, repeat, session; 0 and empty for none.
        missing: how many more there must be for a test, of each trace where they are drawn within one.
    """

    value: float
    interval: tuple[float, float] | None = None
    p: float | None = None
    count: int = 0
    unit: str = ""
    missing: int = 0


def mean_of(values: Sequence[float], *, share: bool = False) -> Estimate:
    """Mean and interval over runs; equal values are copies of one observation and have no interval.

    Of values all above 0 the interval is Student's t on the logarithm of the mean, of shares on its log odds (the
    delta method): it ends where values can be, and is the plain one where that is narrow beside the mean.
    """
    array = np.asarray(values, dtype=np.float64)
    if (array == array[0]).all():
        return Estimate(value=float(array[0]))
    mean, interval = float(array.mean()), _t_interval(array)
    if array.min() >= 0:
        rest = 1 - mean if share and array.max() <= 1 else None
        factor = math.exp(min((interval[1] - mean) / (mean if rest is None else mean * rest), 500.0))
        low, high = mean / factor, mean * factor
        interval = (low, high) if rest is None else (low / (low + rest), high / (high + rest))
    return Estimate(value=mean, interval=interval)


def paired(differences: Sequence[float], unit: str) -> Estimate:
    """The mean of independent paired differences; a p value from `FEW` of them on."""
    array = np.asarray(differences, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return Estimate(value=mean, count=count, unit=unit)
    p = None
    if count >= FEW:
        by_t = float(stats.ttest_1samp(array, 0.0).pvalue) if array.std() else 0.0
        p = max(sign_flip(array), by_t)
    return Estimate(value=mean, interval=_t_interval(array), p=p, count=count, unit=unit)


def least_p(count: int) -> float:
    """The least two-sided p that sign flips of so many differences can give."""
    return float(min(1.0, 2.0 ** (1 - count)))


def enough(num_comparisons: int) -> int:
    """Differences from which sign flips can show one of so many comparisons."""
    return max(FEW, 1 + math.ceil(math.log2(num_comparisons / 0.05)))


def sign_flip(differences: Floats) -> float:
    """Two-sided p of the sum when each difference is as likely to have the other sign; exact up to 13 pairs."""
    test = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", vectorized=True, n_resamples=_FLIPS, batch=_BATCH,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.pvalue)


def sessions(traces: Sequence[tuple[Floats, Floats]], word: str) -> Estimate:
    """The difference of a rate over the sessions of one trace, or its mean over traces, drawn within each.

    Args:
        traces: (parts, wholes) of each, (U,) in order of time: what the challenger hit more in each session, and the
            session's prompt tokens.
        word: what a unit is called, `session` or `request`.
    """
    rates = [float(parts.sum() / wholes.sum()) for parts, wholes in traces]
    mean, lengths = float(np.mean(rates)), [run_length(parts, wholes) for parts, wholes in traces]
    if (fewest := min(len(parts) for parts, _ in traces)) < 2:
        count = sum(len(parts) for parts, _ in traces)
        return Estimate(value=mean, count=count, unit=word, missing=FEW_SESSIONS - fewest)
    merged = [(_merged(p, length), _merged(w, length)) for (p, w), length in zip(traces, lengths, strict=True)]
    low, high, p = _studentised([_resampled(*pair) for pair in merged])
    flips = sign_flip(np.concatenate([parts / (len(merged) * wholes.sum()) for parts, wholes in merged]))
    few = fewest < FEW_SESSIONS or min(len(parts) for parts, _ in merged) < FEW_RUNS
    lengths_used = [len(parts) / len(runs) for (parts, _), (runs, _) in zip(traces, merged, strict=True)]
    missing = max(_missing(len(runs), length) for (runs, _), length in zip(merged, lengths, strict=True))
    return Estimate(
        value=mean, interval=(low, high), p=None if few else max(p, flips),
        count=sum(len(parts) for parts, _ in merged), unit=_run_of(word, lengths_used),
        missing=missing if few else 0,
    )  # fmt: skip


def swapped(
    challenger: Floats, baseline: Floats, units: Ints, of: Callable[[Floats, Ints], float], word: str
) -> Estimate:
    """The difference of any statistic of requests, of one trace met by two; p by swapping who met a session how.

    The interval is the percentile bootstrap's over sessions; p the larger of the permutation test's, which swaps the
    values of whole sessions between both, and of the test that the interval inverts. A percentile rests on few
    requests: where one session makes it, no p is small.

    Args:
        challenger, baseline: (R,) what each request met, in order of time.
        units: (R,) the session of each, numbered from 0 in order of the first request.
        of: (values of some requests, their places among the R) -> the statistic.
        word: what a unit is called, `session` or `request`.
    """
    value = of(challenger, every := np.arange(len(units))) - of(baseline, every)
    sizes = np.bincount(units).astype(np.float64)
    count = len(sizes)
    length = run_length(np.bincount(units, weights=challenger - baseline).astype(np.float64), sizes)
    runs = _merged(np.ones(count), length)  # sessions of each
    run_of = np.repeat(np.arange(len(runs)), runs.astype(np.int64))[units]
    members = [(run_of == run).nonzero()[0] for run in range(len(runs))]
    if count < FEW_SESSIONS or len(runs) < FEW_RUNS:
        unit, missing = _run_of(word, [count / len(runs)]), _missing(len(runs), length)
        return Estimate(value=value, count=len(runs), unit=unit, missing=missing)

    def drawn(chosen: Ints) -> float:
        places = np.concatenate([members[run] for run in chosen.tolist()])
        return of(challenger[places], places) - of(baseline[places], places)

    def swap(one: Ints, other: Ints) -> float:
        keeps = (one < other)[run_of]
        return of(np.where(keeps, challenger, baseline), every) - of(np.where(keeps, baseline, challenger), every)

    numbers = np.arange(len(runs))
    by_swap = stats.permutation_test(
        (numbers, numbers + len(runs)), swap, permutation_type="samples", vectorized=False, n_resamples=_SWAPS,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    by_draw = stats.bootstrap(
        (numbers,), drawn, vectorized=False, n_resamples=_SWAPS, method="percentile", rng=np.random.default_rng(0)
    )
    differences = by_draw.bootstrap_distribution
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    low, high = by_draw.confidence_interval
    return Estimate(
        value=value, interval=(float(low), float(high)), count=len(runs), unit=_run_of(word, [count / len(runs)]),
        p=max(float(by_swap.pvalue), min(1.0, 2 * (tail + 1) / (_SWAPS + 1))),
    )  # fmt: skip


def rate_interval(parts: Floats, wholes: Floats) -> tuple[float, float] | None:
    """The 95 % interval of the ratio of sums over the sessions of one trace; None under `FEW_SESSIONS` of them."""
    length = run_length(parts, wholes)
    if len(parts) < FEW_SESSIONS or len(parts) // length < FEW_RUNS:
        return None
    low, high, _ = _studentised([_resampled(_merged(parts, length), _merged(wholes, length))])
    return max(0.0, low), min(1.0, high)


def run_length(parts: Floats, wholes: Floats) -> int:
    """Units in a row to merge so that neighbouring runs hardly correlate.

    Runs are doubled in length; six times the longest at which neighbours still correlate is taken, less where that
    leaves no `FEW_RUNS`, but no less than twice: a record too short for that has too few runs.
    """
    errors = parts - parts.sum() / wholes.sum() * wholes
    longest, length = 0, 1
    while len(errors) // length >= _RUNS_FOR_A_CORRELATION:
        runs = _merged(errors, length)
        squares = float(runs @ runs)
        if squares and float(runs[1:] @ runs[:-1]) / squares * np.sqrt(len(runs)) > _NEIGHBOURS_DIFFER:
            longest = length
        length *= 2
    wanted = min(_TIMES_LONGER * longest, len(errors) // FEW_RUNS)
    return max(1, wanted, 2 * longest, -(-len(errors) // _MOST_UNITS))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for being many, by Holm's step-down method, in their order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _resampled(parts: Floats, wholes: Floats) -> Floats:
    """(2, RESAMPLES + 1) the ratio of sums and its standard error: of the trace, then of resamples of its units."""

    def ratio(parts: Floats, wholes: Floats, axis: int = -1) -> Floats:
        rate = parts.sum(axis) / wholes.sum(axis)
        errors = parts - np.expand_dims(rate, axis) * wholes
        return np.stack([rate, np.sqrt((errors**2).sum(axis)) / wholes.sum(axis)])

    drawn = stats.bootstrap(
        (parts, wholes), ratio, paired=True, vectorized=True, n_resamples=RESAMPLES, batch=_BATCH, method="percentile",
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return np.concatenate([ratio(parts, wholes)[:, None], drawn.bootstrap_distribution], axis=1)


def _studentised(traces: Sequence[Floats]) -> tuple[float, float, float]:
    """(low, high, p) of the mean over traces: the bootstrap of its distance to the truth, in standard errors."""
    rates = np.mean([rate for rate, _ in traces], axis=0)
    errors = np.sqrt(np.sum([error**2 for _, error in traces], axis=0)) / len(traces)
    mean, error = float(rates[0]), float(errors[0])
    if error <= 1e-12 * abs(mean):
        return mean, mean, 0.0 if mean else 1.0
    distances = (rates[1:] - mean) / np.maximum(errors[1:], 1e-9 * error)
    below, above = np.percentile(distances, (2.5, 97.5))
    tail = min(int((distances <= mean / error).sum()), int((distances >= mean / error).sum()))
    return float(mean - above * error), float(mean - below * error), min(1.0, 2 * (tail + 1) / (len(distances) + 1))


def _merged(values: Floats, length: int) -> Floats:
    """Sums over consecutive runs of `length` units, or a little more where that does not divide them."""
    count = max(1, len(values) // length)
    return np.add.reduceat(values, np.arange(count) * len(values) // count)


def _missing(count: int, length: int) -> int:
    """How many more runs of this length a trace must have to say something."""
    return max(1, max(FEW_RUNS, -(-FEW_SESSIONS // length)) - count)


def _run_of(word: str, lengths: Sequence[float]) -> str:
    least, most = round(min(lengths)), round(max(lengths))
    if most <= 1:
        return word
    return f"run of {least if least == most else f'{least} to {most}'} {word}s"


def _t_interval(array: Floats) -> tuple[float, float]:
    mean, error = float(array.mean()), float(array.std(ddof=1)) / len(array) ** 0.5
    half = float(stats.t.ppf(0.975, len(array) - 1)) * error
    return mean - half, mean + half
