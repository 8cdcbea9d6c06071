"""The built-in tiering rules."""

from __future__ import annotations

from framework.errors import ConfigError
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering


class Never(Tiering):
    """Nothing is stored below the pool: the baseline of a comparison."""

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return False


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


class WriteThrough(Tiering):
    """A block goes to every tier below as soon as it is written, so that an eviction moves nothing.

    Writes most: content that is never used again is stored too.

    Source: write_through in SGLang's HiCache; the CPU offloading connector of vLLM without a store threshold.
    """

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event != "evicted"


class OnSecondHit(Tiering):
    """A block goes to the tiers below at its `uses`-th use, the one that computed it counted.

    Uses are counted for all blocks of a prompt and outlive evictions, so a threshold delays a block and starves none:
    content that was evicted before it reached the threshold is stored when it is computed again.

    Source: write_through_selective in SGLang's HiCache, two uses; `store_threshold` of vLLM's CPU offloading.
    """

    def __init__(self, *, uses: int = 2) -> None:
        if uses < 1:
            raise ConfigError(f"uses must be at least 1, found {uses}")
        self.uses = uses

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event != "evicted" and block.uses >= self.uses
