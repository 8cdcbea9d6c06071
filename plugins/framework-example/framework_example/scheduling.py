"""A scheduling order: the request that would have most tokens served from the cache, for its length, is next."""

from __future__ import annotations

from framework.interfaces.scheduling import QueueView, ScoredScheduling, WaitingRequest


class BestShare(ScoredScheduling):
    """The largest share of the prompt that is cached goes first; nobody is passed more often than `max_passed` times.

    Args:
        max_passed: most requests that may pass another.
    """

    needs_hits = True

    def __init__(self, max_passed: int = 100) -> None:
        self.max_passed = max_passed

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        return -request.hit_tokens / request.num_tokens
