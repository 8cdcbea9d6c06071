"""Evicted blocks go to the tier below."""

from __future__ import annotations

from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering


class OnEviction(Tiering):
    """A block goes to the tier below when its own tier evicts it, and leaves that tier when a request loads it.

    With `exclusive=False` the lower copy stays after a load, so that a second eviction of the same content moves
    nothing: fewer writes, less room. Both are known as write-back. With `prefetch=True` the blocks of a request that
    waits for room in the pool are brought up to tier 1 meanwhile.

    Source: exclusive caching, Wong and Wilkes, USENIX ATC 2002; SGLang's HiCache, whose write_back keeps the copy and
    which prefetches from storage into host memory while a request is queued.
    """

    def __init__(self, *, exclusive: bool = True, prefetch: bool = False) -> None:
        self.exclusive, self._prefetch = exclusive, prefetch

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event == "evicted"

    def prefetch(self, offer: LoadOffer, now: float) -> int:
        return len(offer.tiers) if self._prefetch else 0
