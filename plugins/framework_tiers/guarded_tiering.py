"""Error boundary around tiering rules."""

from __future__ import annotations

from typing import Any

from framework.guard.boundary import Boundary
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering


class GuardedTiering:
    """A tiering rule whose every failure is a PluginError naming distribution, class, method and rule.

    Attributes:
        wants_load: whether it overrides `load`; the one it inherits takes all.
        wants_prefetch: whether it overrides `prefetch`; the one it inherits takes none.
        exclusive: see `Tiering.exclusive`.
    """

    def __init__(self, rule: Tiering) -> None:
        self._rule, self._boundary = rule, Boundary("tiering rule", type(rule))
        self.name = type(rule).__name__
        self.wants_load = getattr(rule.load, "__func__", None) is not Tiering.load
        self.wants_prefetch = getattr(rule.prefetch, "__func__", None) is not Tiering.prefetch
        exclusive: Any = rule.exclusive
        if type(exclusive) is not bool:
            self._boundary.wrong("exclusive", "must be a bool", exclusive)
        self.exclusive = exclusive

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        """The rule's answer, checked: a bool."""
        try:
            answer: Any = self._rule.store(block, event, now)
        except BaseException as error:
            self._boundary.contain("store", error, f" for {block}")
        if type(answer) is not bool:
            self._boundary.wrong("store", "must return a bool", answer)
        return bool(answer)

    def load(self, offer: LoadOffer, now: float) -> int:
        """The rule's answer, checked: a number of blocks of the offer."""
        return self._count("load", offer, now) if self.wants_load else len(offer.tiers)

    def prefetch(self, offer: LoadOffer, now: float) -> int:
        """The rule's answer, checked: a number of blocks of the offer."""
        return self._count("prefetch", offer, now) if self.wants_prefetch else 0

    def _count(self, hook: str, offer: LoadOffer, now: float) -> int:
        most = len(offer.tiers)
        try:
            answer: Any = getattr(self._rule, hook)(offer, now)
        except BaseException as error:
            self._boundary.contain(hook, error, f" for {most} blocks")
        if type(answer) is not int or not 0 <= answer <= most:
            self._boundary.wrong(hook, f"must return an int from 0 to {most}", answer)
        return int(answer)
