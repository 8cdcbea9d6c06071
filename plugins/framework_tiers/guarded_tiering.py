"""Checks of what tiering rules answer."""

from __future__ import annotations

from typing import Any

from framework.guard.boundary import Guard
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering


class GuardedTiering(Guard):
    """A tiering rule whose answers are what they must be; else a PluginError names it.

    Attributes:
        wants_load: whether it overrides `load`; the one it inherits takes all.
        wants_prefetch: whether it overrides `prefetch`; the one it inherits takes none.
        exclusive: see `Tiering.exclusive`.
    """

    def __init__(self, rule: Tiering) -> None:
        super().__init__("tiering", rule)
        self.wants_load = getattr(rule.load, "__func__", None) is not Tiering.load
        self.wants_prefetch = getattr(rule.prefetch, "__func__", None) is not Tiering.prefetch
        exclusive: Any = rule.exclusive
        if type(exclusive) is not bool:
            self.wrong("exclusive", "must be a bool", exclusive)
        self.exclusive = exclusive

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        """The rule's answer, checked: a bool."""
        answer: Any = self.plugin.store(block, event, now)
        if type(answer) is not bool:
            self.wrong("store", "must return a bool", answer)
        return bool(answer)

    def load(self, offer: LoadOffer, now: float) -> int:
        """The rule's answer, checked: a number of blocks of the offer."""
        return self._count("load", self.plugin.load(offer, now), offer) if self.wants_load else len(offer.tiers)

    def prefetch(self, offer: LoadOffer, now: float) -> int:
        """The rule's answer, checked: a number of blocks of the offer."""
        return self._count("prefetch", self.plugin.prefetch(offer, now), offer) if self.wants_prefetch else 0

    def _count(self, hook: str, answer: Any, offer: LoadOffer) -> int:
        most = len(offer.tiers)
        if type(answer) is not int or not 0 <= answer <= most:
            self.wrong(hook, f"must return an int from 0 to {most}", answer)
        return int(answer)
