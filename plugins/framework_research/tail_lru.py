"""Least recently used, but first of all what a latency budget can spare."""

from __future__ import annotations

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, ScoredPolicy


class TailLru(ScoredPolicy):
    """Tail-optimised LRU: blocks at a prompt's end that its next turn can recompute within the budget go first.

    The next turn of a conversation of `n` tokens is expected to bring `next_tokens` more. It meets its time to first
    token when at most `budget_tokens` of the sum are computed, so the blocks that end beyond
    `n + next_tokens - budget_tokens` can be spared. Spared blocks go first, least recently used first; then the others
    in the same order. Ties: deepest, then lowest id. O(log n) a call. Where nothing is known of requests it is LRU.

    Args:
        budget_tokens: prompt tokens that may be computed within the objective: TTFT times prefill tokens a second. What
            makes it differ from `lru`: it must be above `next_tokens` for any block to be spared.
        next_tokens: tokens that a turn adds, the answer before it included.

    Raises:
        InvalidArgument: a number of tokens below 0.

    Source: Zhang et al. 2025, Tail-optimised caching (T-LRU), arXiv:2510.15152; `tlru` in SGLang.
    """

    needs_requests = True

    def __init__(self, budget_tokens: int = 2048, next_tokens: int = 512) -> None:
        if budget_tokens < 0 or next_tokens < 0:
            raise InvalidArgument(
                f"budget_tokens and next_tokens must be at least 0, found {budget_tokens} and {next_tokens}"
            )
        self._spared = budget_tokens - next_tokens

    def score(self, block: Block, now: float) -> tuple[bool, int]:
        prompt = block.last_request.prompt_tokens
        needed = prompt is None or block.num_tokens <= prompt - self._spared
        return (needed, block.last_access)
