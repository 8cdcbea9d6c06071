"""A policy that fails in the middle of serving."""

from __future__ import annotations

from framework.interfaces.eviction import Block, ScoredPolicy


class FailsLater(ScoredPolicy):
    """Least recently used, until the 500th score."""

    def __init__(self) -> None:
        super().__init__()
        self._scores = 0

    def score(self, block: Block, now: float) -> float:
        """Raises RuntimeError from the 500th call on."""
        self._scores += 1
        if self._scores >= 500:
            raise RuntimeError("this policy fails on purpose")
        return block.last_access
