"""Tiering rules with a fault that engines shipped, which tests must catch."""

from __future__ import annotations

from framework_tiers.tiering import Event, TierBlock, Tiering


class UntilTheFirstMiss(Tiering):
    """A frequency gate that counts uses of what a lookup found, and lookups end at the first miss."""

    def __init__(self) -> None:
        self.seen: dict[bytes, int] = {}

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        self.seen[block.key] = self.seen.get(block.key, 0) + (event == "used")
        return event == "used" and self.seen[block.key] >= 2
