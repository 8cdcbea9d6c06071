"""Is one setting better than another, or is it chance? A paired bootstrap and intervals over few runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal's is 4 % short at most.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_RESAMPLES = 10_000
FEW_PAIRS = 6
"""With fewer pairs not even a difference of one sign throughout is beyond chance at 5 %: no verdict."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds with the half-width of its 95 % interval by Student's t; None for a single run."""

    value: float
    half_width: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean paired difference, challenger minus baseline.

    Attributes:
        low, high: the 95 % percentile interval of the bootstrap.
        p: two-sided, by the bootstrap; never below 2 / 2**pairs, what the signs of so few pairs can show.
        pairs: runs that differ in nothing but what is compared.
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and interval of independent runs."""
    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    if count < 2:
        return Mean(float(array.mean()), None, count)
    quantile = _T[count - 2] if count - 2 < len(_T) else 1.96
    return Mean(float(array.mean()), float(quantile * array.std(ddof=1) / np.sqrt(count)), count)


def paired_bootstrap(baseline: Sequence[float], challenger: Sequence[float]) -> Difference:
    """Resample the pairs with replacement, 10,000 times from a fixed seed: the same report twice is the same text.

    Source: Efron and Tibshirani 1993, chapters 13 and 16.
    """
    differences = np.asarray(challenger, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    rng = np.random.default_rng(0)
    means = np.empty(_RESAMPLES)
    for start in range(0, _RESAMPLES, 1000):  # by thousands: pairs may be many
        picks = rng.integers(0, len(differences), size=(1000, len(differences)))
        means[start : start + 1000] = differences[picks].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    if (differences == differences[0]).all():
        tail = _RESAMPLES if differences[0] == 0 else 0
    else:
        tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    # Resampling a handful of pairs never sees the spread they do not show: bounded by the exact sign test.
    p = min(1.0, max(2 * (tail + 1) / (_RESAMPLES + 1), 2.0 ** (1 - len(differences))))
    return Difference(mean=float(differences.mean()), low=float(low), high=float(high), p=p, pairs=len(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for being many, by Holm's step-down method, in their order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
