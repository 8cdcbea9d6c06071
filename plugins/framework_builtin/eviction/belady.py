"""Evict what will be needed last."""

from __future__ import annotations

from framework.interfaces.eviction import Block, ScoredPolicy


class Belady(ScoredPolicy):
    """Furthest next use goes first. Replay only: elsewhere every next use is unknown and it evicts deepest first.

    The offline optimum when each request is one atomic access and all its blocks are admitted; with requests that
    overlap and pin their blocks a strong heuristic, no bound.
    Ties: deepest first, then lowest id. O(log n) a call.
    Source: Belady 1966, IBM Systems Journal 5(2).
    """

    needs_future = True

    def score(self, block: Block, now: float) -> float:
        return -block.next_use
