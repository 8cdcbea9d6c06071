"""Evicted blocks go to the tier below, and come back where that is faster than computing them."""

from __future__ import annotations

from framework_tiers.rules.on_eviction import OnEviction
from framework_tiers.tiering import LoadOffer


class LoadOrRecompute(OnEviction):
    """As `on_eviction`, but a request loads only as many of its blocks as brings its first token soonest.

    Loading the first n blocks and computing the rest takes load(n) + recompute(all) - recompute(n), so n is where
    recompute(n) - load(n) is largest, and 0 where that is never above 0. Without predicted times all are loaded. The
    time that a recomputation takes from other requests is not weighed.

    Source: the split of a prefix between loading and computing in Jin et al. 2024, Cake, arXiv:2410.03065.
    """

    def load(self, offer: LoadOffer, now: float) -> int:
        if offer.load_s is None or offer.recompute_s is None:
            return len(offer.tiers)
        saved = [recompute - load for load, recompute in zip(offer.load_s, offer.recompute_s, strict=True)]
        best = max(saved)
        return len(saved) - saved[::-1].index(best) if best > 0 else 0
