"""Evict what is cheap to compute again and old."""

from __future__ import annotations

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, ScoredPolicy
from framework.types import BlockId


class CostAware(ScoredPolicy):
    """GreedyDual: rank = L + cost, taken at each use, L being the rank of the last victim.

    The cost is a block's recompute FLOPs, in units of its work at depth 0: they grow with the context it attends to
    and are double at `crossover_tokens`. Deep blocks therefore stay longer; without a leaf filter they may outlive
    their ancestors. With equal costs it is LRU.
    Ties: least recently used, then deepest, then lowest id. O(log n) a call.

    Args:
        crossover_tokens: parameters / (2 x layers x attention width); 30,500 for Llama 3 8B.

    Source: Young 1991, "On-line caching as cache size varies"; Cao and Irani, USITS 1997.
    """

    def __init__(self, crossover_tokens: int = 30_500) -> None:
        if crossover_tokens < 1:
            raise InvalidArgument(f"cost_aware.crossover_tokens must be at least 1, found {crossover_tokens}")
        self._crossover = crossover_tokens
        self._age = 0.0

    def score(self, block: Block, now: float) -> tuple[float, int]:
        return (self._age + 1.0 + block.num_tokens / self._crossover, block.last_access)

    def evicted(self, block: BlockId, now: float) -> None:
        if block in self._scores:
            self._age = max(self._age, self._scores[block][0])
        super().evicted(block, now)
