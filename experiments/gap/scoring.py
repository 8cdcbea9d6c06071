"""The score of the gap and of the leaderboard: the area between LRU and the pinned optimum that a policy closes."""
# Shapes: K capacities  R requests  U resampling units  B resamples

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import RequestPaths
from framework_cache_only.stack import reuse_distances

FRACTIONS = (0.01, 0.02, 0.035, 0.06, 0.1, 0.2, 0.35, 0.5)
"""Capacities, as shares of a trace's distinct blocks."""
NUM_RESAMPLES = 1000
_SEED = 0

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Scored = tuple[float, float, float]
"""A share that was closed, and the ends of its 95 % interval by percentiles."""


@dataclass(frozen=True, slots=True)
class Field:
    """A trace, its capacities, and what LRU and the pinned optimum hit: (K, U) blocks, by resampling unit."""

    paths: RequestPaths
    units: Ints
    capacities: tuple[int, ...]
    lru: Floats
    optimum: Floats
    published: Floats

    @property
    def num_references(self) -> int:
        """Blocks that all requests reference."""
        return self.paths.num_references

    def by_unit(self, request_hits: npt.NDArray[np.integer]) -> Floats:
        """(U,) hit blocks of each unit, of (R,) of each request."""
        return by_unit(self.units, request_hits)


def by_unit(units: Ints, request_hits: npt.NDArray[np.integer]) -> Floats:
    """(U,) sums of (R,) hits over each unit's requests."""
    return np.bincount(units, weights=request_hits)


def field_of(paths: RequestPaths, units: Ints, fractions: Sequence[float] = FRACTIONS) -> Field:
    """The bounds of a trace. LRU at all capacities is one pass, each optimum a few hundredths of a second."""
    capacities = tuple(max(1, round(paths.num_nodes * part)) for part in fractions)
    distances, count = reuse_distances(paths), paths.num_requests
    lru = [np.bincount(paths.requests[(distances > 0) & (distances <= size)], minlength=count) for size in capacities]
    best = {pinned: [optimum_hits(paths, size, pinned=pinned) for size in capacities] for pinned in (True, False)}
    rows = [np.stack([by_unit(units, hits) for hits in found]) for found in (lru, best[True], best[False])]
    return Field(paths, units, capacities, *rows)


def closed_by(field: Field, hits: Floats, resamples: int = NUM_RESAMPLES) -> Scored:
    """Share of the area between LRU and the pinned optimum, over the logarithm of the capacity, that is closed.

    1 is the optimum, 0 LRU, below 0 worse than LRU. Units are drawn with replacement, as many as there are; what a
    resample leaves out still passed through the cache, so the interval says how much the score hangs on which sessions
    were recorded.

    Args:
        hits: (K, U) of the policy.
    """
    weights = _resampled(field.lru.shape[1], resamples)
    return _interval(
        _area(field, (hits - field.lru) @ weights.T), _area(field, (field.optimum - field.lru) @ weights.T)
    )


def closed_by_at(field: Field, hits: Floats, index: int = 0, resamples: int = NUM_RESAMPLES) -> Scored:
    """The same at one capacity: the share of the gap between LRU and the pinned optimum there."""
    weights = _resampled(field.lru.shape[1], resamples)
    gained, gap = ((rows[index] - field.lru[index]) @ weights.T for rows in (hits, field.optimum))
    return _interval(gained, gap)


def _resampled(units: int, resamples: int) -> Floats:
    """(B + 1, U) how often each unit is drawn, once each in the first row."""
    draws = np.random.default_rng(_SEED).multinomial(units, np.full(units, 1 / units), size=resamples)
    return np.vstack([np.ones(units), draws.astype(np.float64)])


def _interval(gained: Floats, gap: Floats) -> Scored:
    """The share gained of each gap, (B + 1,): the value, then resamples, of which those without a gap say nothing."""
    closed = np.divide(gained, gap, out=np.full(len(gap), np.nan), where=gap > 0)
    drawn = closed[1:][np.isfinite(closed[1:])]
    low, high = np.percentile(drawn, (2.5, 97.5)) if len(drawn) else (np.nan, np.nan)
    return float(closed[0]), float(low), float(high)


def closed_at(field: Field, hits: Floats) -> Floats:
    """(K,) share closed at each capacity; NaN where LRU is optimal."""
    gap = (field.optimum - field.lru).sum(axis=1)
    return np.divide((hits - field.lru).sum(axis=1), gap, out=np.full(len(gap), np.nan), where=gap > 0)


def points_over_lru(field: Field, hits: Floats) -> Floats:
    """(K,) difference to LRU in points of the hit rate by block."""
    return 100 * (hits - field.lru).sum(axis=1) / field.num_references


def _area(field: Field, heights: Floats) -> Floats:
    """(B + 1,) of (K, B + 1) heights, by the trapezoidal rule over the logarithm of the capacity."""
    return np.asarray(np.trapezoid(heights, np.log(field.capacities), axis=0))
