"""Checks of what stores answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framework.guard.boundary import Guard
from framework.types import BlockHash
from framework_tiers.store import BlockFormat, Store


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
