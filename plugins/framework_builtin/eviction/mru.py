"""Evict what was used last."""

from __future__ import annotations

from framework.interfaces.eviction import Block, ScoredPolicy


class Mru(ScoredPolicy):
    """Most recently used goes first: best for cyclic scans longer than the cache, worst for nearly all else.

    Ties (one request's blocks): deepest first, then lowest id. O(log n) a call.
    Source: Chou and DeWitt, VLDB 1985.
    """

    def score(self, block: Block, now: float) -> int:
        return -block.last_access
