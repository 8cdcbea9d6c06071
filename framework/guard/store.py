"""Error boundary around stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framework.errors import StoreFailed
from framework.guard.boundary import Boundary
from framework.interfaces.store import Allocate, BlockFormat, Store
from framework.types import BlockHash


class GuardedStore:
    """A store whose every failure is a StoreFailed or a PluginError naming distribution, class, method and rule.

    Attributes:
        holds_kv: see `Store.holds_kv`.
        medium: see `Store.medium`.
        lists: whether it overrides `keys`: what it holds outlives a process.

    A class that overrides `write` or `read` of one with places has no places there: its own methods are called.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._boundary = store, Boundary("store", type(store), (StoreFailed,))
        self.name, self.holds_kv = type(store).__name__, bool(store.holds_kv)
        self.medium = str(store.medium)
        self._reserves = _as_near(type(store), "reserve", "write")
        self._shows = _as_near(type(store), "view", "read")
        self.lists = getattr(store.keys, "__func__", None) is not Store.keys

    def use_memory(self, allocate: Allocate) -> None:
        try:
            self._store.use_memory(allocate)
        except BaseException as error:
            self._boundary.contain("use_memory", error)

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self._block_bytes = format.block_bytes
        try:
            self._store.open(format, num_blocks)
        except BaseException as error:
            self._boundary.contain("open", error)

    def write(self, key: BlockHash, data: memoryview) -> None:
        try:
            self._store.write(key, data)
        except BaseException as error:
            self._boundary.contain("write", error)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        """The store's answer, checked: a bool."""
        try:
            answer: Any = self._store.read(key, into)
        except BaseException as error:
            self._boundary.contain("read", error)
        if type(answer) is not bool:
            self._boundary.wrong("read", "must return a bool", answer)
        return bool(answer)

    def reserve(self, key: BlockHash) -> memoryview | None:
        """The place to write a block, checked; None: by `write`."""
        if not self._reserves:
            return None
        try:
            place: Any = self._store.reserve(key)
        except BaseException as error:
            self._boundary.contain("reserve", error)
        return self._checked("reserve", place)

    def view(self, key: BlockHash) -> memoryview | None:
        """The place of a block, checked; None: by `read`."""
        if not self._shows:
            return None
        try:
            place: Any = self._store.view(key)
        except BaseException as error:
            self._boundary.contain("view", error)
        return self._checked("view", place)

    def _checked(self, hook: str, place: Any) -> memoryview | None:
        if place is None:
            return None
        if type(place) is not memoryview or place.nbytes != self._block_bytes or not place.contiguous:
            self._boundary.wrong(hook, f"must return None or a memoryview of {self._block_bytes} bytes", place)
        return place

    def remove(self, key: BlockHash) -> None:
        try:
            self._store.remove(key)
        except BaseException as error:
            self._boundary.contain("remove", error)

    def keys(self) -> Iterator[BlockHash]:
        """What it holds, checked: non-empty bytes."""
        try:
            listed = self._store.keys()
            for key in listed:
                answer: Any = key
                if type(answer) is not bytes or not answer:
                    self._boundary.wrong("keys", "must list non-empty bytes", answer)
                yield key
        except GeneratorExit:
            raise
        except BaseException as error:
            self._boundary.contain("keys", error)

    def close(self) -> None:
        try:
            self._store.close()
        except BaseException as error:
            self._boundary.contain("close", error)


def _as_near(cls: type, name: str, other: str) -> bool:
    """Whether `name` is defined by `cls` itself or a class as near to it as that which defines `other`."""
    first = next(base for base in cls.__mro__ if name in vars(base) or other in vars(base))
    return name in vars(first)
