"""The offline optima of the request model: the ceilings that policies are measured against.

The published optimum (`pinned=False`) may decline content: after a request any C of its blocks and the resident ones
stay, and while it runs the two together may exceed the capacity C. No engine can do that. The pinned optimum
(`pinned=True`) is bound as an engine is: the request at hand holds its blocks (its first C, when it is longer) while it
runs, and nothing ever exceeds C. It may give its blocks up as soon as the request has ended, so a policy that declines
content then (`EvictionPolicy.keep`) is held to it too. Both are exact: no schedule under those rules hits more blocks
in the request model of `reference.replay`. For a cache whose requests overlap, or that caches outputs which
prompts do not hit, both are upper bounds only.

`optimum_hits` counts hits, in time that grows with the requests rather than with their blocks. A cache-only replay with
the policy `optimum`, or `belady` for the pinned one, hits the same, and counts admissions and evictions too.

Why furthest-next-use is exact here though a block needs its ancestors: whoever requests a block requests its
ancestors, so an ancestor's next use is never later than its descendant's. Keeping the nearest next uses, shallower
first among equals, therefore keeps a tree without holes; for a cache without holes each resident block of a request
is a hit, so the model is ordinary paging with batches, where the exchange argument of Belady (1966) and Mattson et
al. (1970) holds. The tests confirm both against exhaustive search over small instances.

Why `optimum_hits` need not look at blocks: those with the same next request j lie on one path, so what stays of them
is a leading part of it. One count for each coming request is the whole state, evictions shorten the furthest one, and
the count of j when j comes is what it hits.
"""

from __future__ import annotations

import heapq

import numpy as np

from framework.errors import InvalidArgument
from framework_cache_only.paths import Ints, RequestPaths


def optimum_hits(
    paths: RequestPaths, num_blocks: int, *, pinned: bool, request_blocks: int | None = None, most: Ints | None = None
) -> Ints:
    """(R,) hit blocks of each request under the published optimum, or under the pinned one; see the module's text.

    Args:
        request_blocks: pinned: blocks of its own that a request holds at most while it runs, where these are fewer than
            the capacity: the pool's, when `num_blocks` count what lies below it. What it does not hold may stay too.
        most: (R,) leading blocks of each that it can hit; it computes the others whether or not they are resident, so
            nothing is kept for them. None: all.

    Raises:
        InvalidArgument: `num_blocks` below 1.

    O(log R) a run of equal next requests, of which there are a few a request: 0.1 s for 1.3 million references, once
    `paths.next_runs` are made.
    """
    if num_blocks < 1:
        raise InvalidArgument(f"num_blocks must be at least 1, found {num_blocks}")
    kept = _Kept(paths.num_requests)
    hits = np.zeros(paths.num_requests, dtype=np.int64)
    able = None if most is None else [*most.tolist(), 0]
    for request, (ends, following) in enumerate(paths.next_runs):
        hits[request] = kept.take(request)
        room = (
            min(ends[-1] if ends else 0, num_blocks, num_blocks if request_blocks is None else request_blocks)
            if pinned
            else 0
        )
        kept.shrink(num_blocks - room)
        start = 0
        for end, coming in zip(ends, following, strict=True):
            kept.add(coming, end - start if able is None else max(0, min(end, able[coming]) - start))
            start = end
        kept.shrink(num_blocks)
    return hits


class _Kept:
    """Resident blocks that will be requested again, counted by the request that does so next."""

    def __init__(self, num_requests: int) -> None:
        self._never, self._total = num_requests, 0
        self._counts = [0] * num_requests
        self._furthest: list[int] = []  # negated; entries whose count is 0 are skipped

    def take(self, request: int) -> int:
        """The blocks that wait for this request, which is here."""
        count, self._counts[request] = self._counts[request], 0
        self._total -= count
        return count

    def add(self, request: int, count: int) -> None:
        """So many blocks wait for this request. Those that wait for none take no room: they go before all others."""
        if request == self._never:
            return
        if not self._counts[request]:
            heapq.heappush(self._furthest, -request)
        self._counts[request] += count
        self._total += count

    def shrink(self, most: int) -> None:
        """Evict down to `most` blocks, the furthest request's first, the deepest of them first."""
        while self._total > most:
            request = -self._furthest[0]
            gone = min(self._counts[request], self._total - most)
            self._counts[request] -= gone
            self._total -= gone
            if not self._counts[request]:
                heapq.heappop(self._furthest)
