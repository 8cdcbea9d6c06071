"""The offline optimum over tiers: the ceiling that rules and policies are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import RequestPaths


def tier_optima(paths: RequestPaths, sizes: Sequence[int], *, pinned: bool) -> tuple[int, ...]:
    """Hit blocks of each tier, the pool first, under the optimum over tiers of these capacities.

    Let H_j be the blocks that a run hits in tiers 0 to j, and S_j the capacity of those tiers together. What lies in
    these after a request lay there before or is the request's own, because nothing rises but by being requested: a
    schedule of one cache of S_j blocks. So for any rule and any policies of a cache-only replay

        H_j <= O_j, the optimum of one cache of S_j blocks, for every j at once.

    If a hit in tier j is worth w_j, with w_0 >= w_1 >= ... >= 0, the value of all hits is a sum of the H_j with weights
    that are not negative, and so

        sum_j w_j h_j = sum_j (w_j - w_{j+1}) H_j <= sum_j (w_j - w_{j+1}) O_j,    h_j = H_j - H_{j-1},  w_{last+1} = 0.

    This is no mere bound: keeping the nearest next uses is a stack algorithm (Mattson et al. 1970), so that the
    optimum's content at S_0 is part of that at S_1, and what S_1 has beyond it can lie in tier 1. One schedule of
    exclusive tiers, which demotes what the pool gives up and promotes what is hit, has H_j = O_j for every j, and is
    best for every such weighing. Inclusive tiers hold copies, so they reach it only where there is room to spare.

    Pinned, a request holds its first S_0 blocks in the pool while it runs; O_j is then reached where no request is
    longer than the pool, and a bound otherwise.

    Raises:
        InvalidArgument: a capacity below 1.

    One `optimum_hits` a tier.
    """
    totals = [
        int(optimum_hits(paths, total, pinned=pinned, request_blocks=sizes[0]).sum(dtype=np.int64))
        for total in accumulate(sizes)
    ]
    return tuple(int(hits) for hits in np.diff([0, *totals]))


def value(hits: Sequence[int], weights: Sequence[float]) -> float:
    """What these hits by tier are worth; of `tier_optima`, the most that any run's are, if the weights do not rise."""
    return float(sum(weight * count for weight, count in zip(weights, hits, strict=True)))


def shares_of_best(hits: Sequence[int], best: Sequence[int]) -> tuple[float, float] | None:
    """The least and the greatest share of the best value that these hits reach, over all weights that do not rise.

    The share at any weights is a mean of the shares H_j / O_j, so it lies between the least and the greatest of them.
    None where the optimum hits nothing.
    """
    shares = [ours / theirs for ours, theirs in zip(accumulate(hits), accumulate(best), strict=True) if theirs]
    return (min(shares), max(shares)) if shares else None
