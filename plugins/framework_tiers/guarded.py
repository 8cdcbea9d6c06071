"""Checks of what rules and stores answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framework.guard.boundary import Guard
from framework.types import BlockHash
from framework_tiers.store import BlockFormat, Store
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


class GuardedStore(Guard):
    """A store whose answers are what they must be; else a PluginError names it.

    Attributes:
        holds_kv: see `Store.holds_kv`.
        medium: see `Store.medium`.
        lists: whether it overrides `keys`: what it holds outlives a process.

    A class that overrides `write` or `read` of one with places has no places there: its own methods are called.
    """

    def __init__(self, store: Store) -> None:
        super().__init__("store", store)
        self.holds_kv, self.medium = bool(store.holds_kv), str(store.medium)
        self.use_memory, self.write, self.remove, self.close = store.use_memory, store.write, store.remove, store.close
        self._reserves = _as_near(type(store), "reserve", "write")
        self._shows = _as_near(type(store), "view", "read")
        self.lists = getattr(store.keys, "__func__", None) is not Store.keys

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self._block_bytes = format.block_bytes
        self.plugin.open(format, num_blocks)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        """The store's answer, checked: a bool."""
        answer: Any = self.plugin.read(key, into)
        if type(answer) is not bool:
            self.wrong("read", "must return a bool", answer)
        return bool(answer)

    def reserve(self, key: BlockHash) -> memoryview | None:
        """The place to write a block, checked; None: by `write`."""
        return self._place("reserve", self.plugin.reserve(key)) if self._reserves else None

    def view(self, key: BlockHash) -> memoryview | None:
        """The place of a block, checked; None: by `read`."""
        return self._place("view", self.plugin.view(key)) if self._shows else None

    def _place(self, hook: str, place: Any) -> memoryview | None:
        if place is None:
            return None
        if type(place) is not memoryview or place.nbytes != self._block_bytes or not place.contiguous:
            self.wrong(hook, f"must return None or a memoryview of {self._block_bytes} bytes", place)
        return place

    def keys(self) -> Iterator[BlockHash]:
        """What it holds, checked: non-empty bytes."""
        listed: Iterator[Any] = self.plugin.keys()
        for answer in listed:
            if type(answer) is not bytes or not answer:
                self.wrong("keys", "must list non-empty bytes", answer)
            yield BlockHash(answer)


def _as_near(cls: type, name: str, other: str) -> bool:
    """Whether `name` is defined by `cls` itself or a class as near to it as that which defines `other`."""
    first = next(base for base in cls.__mro__ if name in vars(base) or other in vars(base))
    return name in vars(first)
