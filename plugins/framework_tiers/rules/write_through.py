"""Every block goes to the tiers below as soon as it is written."""

from __future__ import annotations

from framework_tiers.tiering import Event, TierBlock, Tiering


class WriteThrough(Tiering):
    """A block goes to every tier below as soon as it is written, so that an eviction moves nothing.

    Writes most: content that is never used again is stored too.

    Source: write_through in SGLang's HiCache; the CPU offloading connector of vLLM without a store threshold.
    """

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event != "evicted"
