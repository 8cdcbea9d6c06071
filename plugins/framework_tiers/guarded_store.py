"""Error boundary around stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from framework.errors import StoreFailed
from framework.guard.boundary import Boundary, contained
from framework.types import BlockHash
from framework_tiers.store import BlockFormat, Store


class GuardedStore:
    """A store whose every failure is a StoreFailed or a PluginError naming distribution, class, method and rule.

    Attributes:
        holds_kv: see `Store.holds_kv`.
        medium: see `Store.medium`.
        lists: whether it overrides `keys`: what it holds outlives a process.

    A class that overrides `write` or `read` of one with places has no places there: its own methods are called.
    """

    def __init__(self, store: Store) -> None:
        self.plugin, self._boundary = store, Boundary("store", type(store), (StoreFailed,))
        self.name, self.holds_kv = type(store).__name__, bool(store.holds_kv)
        self.medium = str(store.medium)
        self._reserves = _as_near(type(store), "reserve", "write")
        self._shows = _as_near(type(store), "view", "read")
        self.lists = getattr(store.keys, "__func__", None) is not Store.keys

    use_memory, write = contained(Store.use_memory), contained(Store.write)
    remove, close = contained(Store.remove), contained(Store.close)

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self._block_bytes = format.block_bytes
        self._boundary.call("open", self.plugin.open, format, num_blocks)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        """The store's answer, checked: a bool."""
        answer: Any = self._boundary.call("read", self.plugin.read, key, into)
        if type(answer) is not bool:
            self._boundary.wrong("read", "must return a bool", answer)
        return bool(answer)

    def reserve(self, key: BlockHash) -> memoryview | None:
        """The place to write a block, checked; None: by `write`."""
        return self._place("reserve", self.plugin.reserve, key) if self._reserves else None

    def view(self, key: BlockHash) -> memoryview | None:
        """The place of a block, checked; None: by `read`."""
        return self._place("view", self.plugin.view, key) if self._shows else None

    def _place(self, hook: str, ask: Callable[[BlockHash], Any], key: BlockHash) -> memoryview | None:
        place: Any = self._boundary.call(hook, ask, key)
        if place is None:
            return None
        if type(place) is not memoryview or place.nbytes != self._block_bytes or not place.contiguous:
            self._boundary.wrong(hook, f"must return None or a memoryview of {self._block_bytes} bytes", place)
        return place

    def keys(self) -> Iterator[BlockHash]:
        """What it holds, checked: non-empty bytes."""
        try:
            listed = self.plugin.keys()
            for key in listed:
                answer: Any = key
                if type(answer) is not bytes or not answer:
                    self._boundary.wrong("keys", "must list non-empty bytes", answer)
                yield key
        except GeneratorExit:
            raise
        except BaseException as error:
            self._boundary.contain("keys", error)


def _as_near(cls: type, name: str, other: str) -> bool:
    """Whether `name` is defined by `cls` itself or a class as near to it as that which defines `other`."""
    first = next(base for base in cls.__mro__ if name in vars(base) or other in vars(base))
    return name in vars(first)
