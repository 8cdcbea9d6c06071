"""Nothing is stored below the pool."""

from __future__ import annotations

from framework_tiers.tiering import Event, TierBlock, Tiering


class Never(Tiering):
    """Nothing is stored below the pool: the baseline of a comparison."""

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return False
