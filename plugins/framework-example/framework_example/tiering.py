"""What NearRoot stores below the pool."""

from __future__ import annotations

from framework.errors import ConfigError
from framework_tiers.tiering import Event, TierBlock, Tiering


class NearRoot(Tiering):
    """Blocks near the root are stored when they are evicted."""

    def __init__(self, *, depth: int = 8) -> None:
        if depth < 1:
            raise ConfigError("depth must be at least 1")
        self.depth = depth

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event == "evicted" and block.depth < self.depth
