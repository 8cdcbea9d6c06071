"""Blocks go to the tier below once they were used again."""

from __future__ import annotations

from framework.errors import ConfigError
from framework_tiers.tiering import Event, TierBlock, Tiering


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
