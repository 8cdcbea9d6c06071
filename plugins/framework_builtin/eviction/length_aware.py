"""Evict rarely used blocks, the deep ones first."""

from __future__ import annotations

from framework.interfaces.eviction import Block, ScoredPolicy


class LengthAware(ScoredPolicy):
    """Mooncake's LengthAwareCache: least frequently used, among equals the deepest, then least recently used.

    Ties left over: lowest id. O(log n) a call.
    Source: Qin et al., arXiv:2407.00079 §6 ("similar to LFU but evicting the later blocks of requests first").
    """

    def score(self, block: Block, now: float) -> tuple[int, int, int]:
        return (block.hits, -block.depth, block.last_access)
