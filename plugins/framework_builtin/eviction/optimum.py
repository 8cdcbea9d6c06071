"""What a cache that knows the future and may decline content would do."""

from __future__ import annotations

from framework.interfaces.eviction import Block, ScoredPolicy


class Optimum(ScoredPolicy):
    """Furthest next request goes first, the request at hand included: the offline optimum of prefix caching.

    Exact in a cache-only replay: one atomic access a request, only prompts cached, content may be declined. No schedule
    of admissions and evictions hits more blocks there: its hits are `framework_cache_only.optimum.optimum_hits`.
    In a full replay, where requests overlap and pin their blocks and nothing can be declined, it is what `belady` is: a
    strong heuristic, no bound. Elsewhere every next use is unknown.
    Ties: deepest first, so that the cache stays a tree; then last used first. O(log n) a call.
    Source: Belady 1966, IBM Systems Journal 5(2); Mattson et al. 1970 for the exchange argument.
    """

    needs_future = True
    bypass = True

    def score(self, block: Block, now: float) -> tuple[float, int, int]:
        return (-block.next_use, -block.depth, -block.last_access)
