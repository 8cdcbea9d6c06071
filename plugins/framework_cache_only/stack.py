"""Hits of LRU at every capacity in one pass, from stack distances.

In the request model LRU is a stack algorithm: its cache of C blocks is always the first C of one order, most recent
request first, shallower first within a request. So one pass that finds each reference's place in that order (its
reuse distance) gives the exact hits of every capacity (Mattson et al. 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from framework_cache_only.paths import Ints, RequestPaths


def reuse_distances(paths: RequestPaths) -> Ints:
    """(E,) the smallest capacity at which LRU hits each reference, in blocks; 0 where none does (first references).

    What request j left in the order and nobody touched since is the tail of its path from some depth on, because
    later requests share prefixes only. So a request's shared prefix falls into few runs of one last request each,
    and a Fenwick tree over requests counts what lies ahead of a run: O(E) array work + O(runs log R).
    """
    num_requests = paths.num_requests
    result = np.zeros(paths.num_references, dtype=np.int64)
    last = np.full(paths.num_nodes, -1, dtype=np.int64)
    counts, bounds = _Fenwick(num_requests), paths.starts.tolist()
    tail_starts = [0] * num_requests
    for request, (start, end) in enumerate(pairwise(bounds)):
        path = paths.nodes[start:end]
        previous = last[path]
        cuts = [0, *(np.flatnonzero(np.diff(previous)) + 1).tolist(), end - start] if end > start else []
        for low, high in pairwise(cuts):
            owner = int(previous[low])
            if owner < 0:
                break
            ahead = counts.total - counts.prefix(owner + 1)
            tail = tail_starts[owner]
            result[start + low : start + high] = np.arange(low, high) + (ahead - tail + 1)
            counts.add(owner, tail - high)
            tail_starts[owner] = high
            # what was taken from `owner` is ahead of the later runs, at the front; the current request holds it
            counts.add(request, high - tail)
        counts.add(request, end - start - counts.value(request))
        last[path] = request
    return result


def lru_curve(paths: RequestPaths, capacities: Sequence[int], distances: Ints | None = None) -> list[int]:
    """Hit blocks of LRU in the request model at each capacity: equal to `replay` with LRU, to the last block."""
    if distances is None:
        distances = reuse_distances(paths)
    ordered = np.sort(distances[distances > 0])
    return [int(np.searchsorted(ordered, capacity, side="right")) for capacity in capacities]


class _Fenwick:
    """Prefix sums over fixed slots under point updates, O(log n) each."""

    def __init__(self, size: int) -> None:
        self._tree, self._values, self.total = [0] * (size + 1), [0] * size, 0

    def add(self, slot: int, amount: int) -> None:
        self._values[slot] += amount
        self.total += amount
        tree, slot = self._tree, slot + 1
        while slot < len(tree):
            tree[slot] += amount
            slot += slot & -slot

    def value(self, slot: int) -> int:
        return self._values[slot]

    def prefix(self, count: int) -> int:
        total, tree = 0, self._tree
        while count:
            total += tree[count]
            count -= count & -count
        return total


Histogram = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def distance_histogram(distances: Ints) -> Histogram:
    """(edges (n + 1,), counts (n,)) of the finite distances, four bins of equal ratio an octave."""
    finite = distances[distances > 0]
    if not len(finite):
        return np.array([1, 2]), np.array([0])
    octaves = int(np.ceil(np.log2(finite.max() + 1)))
    edges = np.unique(np.round(2 ** (np.arange(4 * octaves + 1) / 4)).astype(np.int64))
    edges[-1] = max(int(edges[-1]), int(finite.max()) + 1)
    return edges, np.histogram(finite, edges)[0]
