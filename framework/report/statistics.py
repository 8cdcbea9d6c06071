"""Means, paired differences and what they show: intervals, permutation tests, resampling of sessions.

NOTE 1: the p value of a paired difference is an exact sign-flip permutation test, and its interval Student's t: with a
handful of independent pairs the percentiles of a bootstrap are too narrow.
NOTE 2: under `FEW` independent pairs no p value is given: not even a difference of one sign in all pairs is then beyond
chance at 5 %. Copies of one deterministic run are one observation, see `framework.report.evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEW = 6
FEW_SESSIONS = 20
RESAMPLES = 2000
_EXACT_UP_TO = 14  # pairs: 16,384 sign patterns
_RANDOM_SIGNS = 20_000
_LARGEST_DRAW = 2_000_000  # numbers drawn at once

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal's is 4 % short at most.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `count` runs with the half-width of its 95 % interval; None where the runs are copies, or one."""

    value: float
    half_width: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean paired difference, challenger minus baseline.

    Attributes:
        low, high: 95 % interval; None where nothing independent repeats.
        p: two-sided; None where evidence is too little for a test.
        count: independent observations, of what `unit` names: trace, seed, repeat, session; 0 and empty for none.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    count: int = 0
    unit: str = ""


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and interval over runs; equal values are copies of one observation and have no interval."""
    array = np.asarray(values, dtype=np.float64)
    if (array == array[0]).all():
        return Mean(float(array[0]), None, len(array))
    return Mean(float(array.mean()), _half_width(array), len(array))


def paired(differences: Sequence[float], unit: str) -> Difference:
    """The mean of independent paired differences; a p value from `FEW` of them on."""
    array = np.asarray(differences, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return Difference(mean=mean, count=len(array), unit=unit)
    half = _half_width(array)
    p = sign_flip(array) if len(array) >= FEW else None
    return Difference(mean=mean, low=mean - half, high=mean + half, p=p, count=len(array), unit=unit)


def sign_flip(differences: Floats) -> float:
    """Two-sided p of the mean when each difference is as likely to have the other sign; exact up to 14 pairs."""
    count = len(differences)
    if count <= _EXACT_UP_TO:
        patterns = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        extreme = _as_extreme(differences, patterns)
        return float(extreme.mean())
    rng = np.random.default_rng(0)
    found = sum(
        int(_as_extreme(differences, rng.integers(0, 2, size=(1000, count))).sum())
        for _ in range(_RANDOM_SIGNS // 1000)
    )
    return (found + 1) / (_RANDOM_SIGNS + 1)


def resampled(mean: float, resamples: Floats, count: int, unit: str) -> Difference:
    """A difference with the percentile interval of its resamples; a p value from `FEW_SESSIONS` units on."""
    low, high = np.percentile(resamples, (2.5, 97.5))
    tail = min(int((resamples <= 0).sum()), int((resamples >= 0).sum()))
    p = min(1.0, 2 * (tail + 1) / (len(resamples) + 1)) if count >= FEW_SESSIONS else None
    return Difference(mean=mean, low=float(low), high=float(high), p=p, count=count, unit=unit)


def resampled_rates(parts: Floats, wholes: Floats) -> Floats:
    """(RESAMPLES, K) ratios of sums over units drawn with replacement, as many as there are, the same for all K.

    Args:
        parts: (K, U) of each unit, such as hit tokens of each session under K policies.
        wholes: (U,) such as prompt tokens of each session.
    """
    rng = np.random.default_rng(0)
    count, step = len(wholes), max(1, _LARGEST_DRAW // len(wholes))
    chunks = []
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        picks = rng.integers(0, count, size=(size, count)) + count * np.arange(size)[:, None]
        weights = np.bincount(picks.ravel(), minlength=size * count).reshape(size, count)
        chunks.append((weights @ parts.T) / np.maximum(weights @ wholes, 1.0)[:, None])
    return np.concatenate(chunks)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for being many, by Holm's step-down method, in their order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _as_extreme(differences: Floats, patterns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    sums = np.abs((1 - 2 * patterns) @ differences)
    return np.asarray(sums >= abs(float(differences.sum())) * (1 - 1e-12))


def _half_width(array: Floats) -> float:
    quantile = _T[len(array) - 2] if len(array) - 2 < len(_T) else 1.96
    return float(quantile * array.std(ddof=1) / np.sqrt(len(array)))
