"""From the cells' hits to gaps, scores and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.report.statistics import Interval, interval

Floats = npt.NDArray[np.float64]
NUM_RESAMPLES = 2000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy.

    Attributes:
        score: geometric mean over all cells of misses / the optimum's misses, minus 1.
        versus: score minus the reference policy's, resampled together.
        by_trace: the score over each trace's cells alone.
        gaps: (trace, fraction) -> (misses - optimum's misses) / optimum's misses.
        equals: policies with the same hits in every unit of every cell, which this row stands for as well.
        best: share of the resamples in which no other online policy has a lower score.
    """

    policy: str
    score: Interval
    versus: Interval
    by_trace: dict[str, Interval]
    gaps: dict[tuple[str, float], Interval]
    best: float
    equals: tuple[str, ...] = ()


def gap_resamples(references: Floats, optimum_hits: Floats, policy_hits: Floats, weights: Floats) -> Floats:
    """(B + 1, P) gaps: row 0 of the whole trace, the others of the resamples.

    Args:
        references, optimum_hits: (U,) of each unit.
        policy_hits: (P, U).
        weights: (B, U) how often each resample draws each unit.
    """
    weights = np.vstack([np.ones_like(references), weights])
    optimum_misses = weights @ (references - optimum_hits)
    more = weights @ (optimum_hits[None, :] - policy_hits).T
    return np.asarray(more / optimum_misses[:, None], dtype=np.float64)


def rank(
    results: Sequence[dict[str, Any]],
    references: dict[str, Floats],
    *,
    optimum: str,
    reference_policy: str,
    offline: Sequence[str],
    resamples: int = NUM_RESAMPLES,
) -> list[Standing]:
    """Every policy's standing, best score first.

    Units (sessions, else runs of requests) of each trace are drawn with replacement, as many as there are, the same
    draw for all policies and capacities of that trace: policies are compared on equal samples. What a resample leaves
    out still passed through the cache: intervals say how much a score hangs on which sessions were recorded, not how
    a cache would fare without them.

    Args:
        results: cells as `cells.run` gives them, the optimum's among them.
        references: trace -> (U,) block references of each unit.
        offline: policies that know the future; never counted as best.
    """
    equals = tied(results, optimum=optimum, reference_policy=reference_policy)
    policies = list(equals)
    by_cell = {(r["trace"], r["fraction"], r["policy"]): np.array(r["unit_hits"], np.float64) for r in results}
    cells = list(dict.fromkeys((r["trace"], r["fraction"]) for r in results))
    rng = np.random.default_rng(_SEED)
    weights = {
        trace: rng.multinomial(len(units), np.full(len(units), 1 / len(units)), size=resamples).astype(np.float64)
        for trace, units in references.items()
    }
    gaps = {
        (trace, fraction): gap_resamples(
            references[trace],
            by_cell[trace, fraction, optimum],
            np.stack([by_cell[trace, fraction, policy] for policy in policies]),
            weights[trace],
        )
        for trace, fraction in cells
    }
    scores = _geometric([gaps[cell] for cell in cells])
    traces = {name: _geometric([gaps[cell] for cell in cells if cell[0] == name]) for name in references}
    base = scores[:, policies.index(reference_policy)]
    online = [i for i, policy in enumerate(policies) if policy not in offline]
    lowest = scores[1:, online].min(axis=1)
    standings = [
        Standing(
            policy,
            interval(scores[:, i]),
            interval(scores[:, i] - base),
            {name: interval(values[:, i]) for name, values in traces.items()},
            {cell: interval(gaps[cell][:, i]) for cell in cells},
            float(np.mean(scores[1:, i] <= lowest)) if i in online else 0.0,
            equals[policy],
        )
        for i, policy in enumerate(policies)
    ]
    return sorted(standings, key=lambda standing: (standing.score.value, standing.policy))


def tied(results: Sequence[dict[str, Any]], *, optimum: str, reference_policy: str) -> dict[str, tuple[str, ...]]:
    """Policy -> those with the same hits in every unit of every cell; the others stand for themselves.

    Of such a group the reference policy comes first, else the first by name.
    """
    hits: dict[str, list[tuple[Any, ...]]] = {}
    for r in sorted(results, key=lambda r: (r["trace"], r["fraction"])):
        if r["policy"] != optimum:
            hits.setdefault(r["policy"], []).append((r["trace"], r["fraction"], tuple(r["unit_hits"])))
    groups: dict[tuple[tuple[Any, ...], ...], list[str]] = {}
    for policy in sorted(hits, key=lambda policy: (policy != reference_policy, policy)):
        groups.setdefault(tuple(hits[policy]), []).append(policy)
    return {first: tuple(others) for first, *others in groups.values()}


def _geometric(gaps: Sequence[Floats]) -> Floats:
    return np.asarray(np.exp(np.mean([np.log1p(gap) for gap in gaps], axis=0)) - 1)
