"""One tier below the pool: which contents it holds, in the order of its own eviction policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockHash, RequestFacts
from framework_tiers.named import Name, NamedBlocks

Key = Name
"""A node's number in a cache-only replay, a block hash in an engine."""


class Contents(Protocol):
    """What is known of contents, by key: the same in every tier."""

    def name(self, key: Key) -> BlockHash: ...

    def depth(self, key: Key) -> int: ...

    def num_tokens(self, key: Key) -> int:
        """Tokens up to and including it."""

    def parent(self, key: Key) -> Key: ...

    def partial(self, key: Key) -> bool: ...

    def tenant(self, key: Key) -> int: ...

    def last_use(self, key: Key) -> int:
        """Number of the last request that used it, from 1."""

    def uses(self, key: Key) -> int:
        """Requests that used it so far."""

    def next_use(self, key: Key) -> float: ...

    def last_request(self, key: Key) -> RequestFacts: ...


@dataclass(slots=True)
class Counts:
    """What happened to one tier so far, in blocks.

    Attributes:
        hits: blocks of requests' cached prefixes that lay here.
        stored: written into this tier. `read`: read from it, by a load or to be stored in the next tier.
        evicted: given up by the policy to make room. `dropped`: left because the pool got the content back.
        refused: stores for which no block could be evicted.
        adopted: that an earlier process had stored.
        lost: held until a write or a read of their bytes failed, or they proved not sound.
        unread: evicted without ever having been a hit here.
        peak: most blocks held at once.
    """

    hits: int = 0
    stored: int = 0
    read: int = 0
    evicted: int = 0
    dropped: int = 0
    refused: int = 0
    lost: int = 0
    adopted: int = 0
    unread: int = 0
    peak: int = 0


class Tier(NamedBlocks):
    """Up to `num_blocks` contents. What is pinned, by a request that uses it or a copy under way, is never evicted.

    Pins are counted: a content can be evicted once each `pin`, `use` and pinned `insert` of it has met its `unpin`.

    Its policy is asked for victims and informed of every use; `EvictionPolicy.keep` is not asked, because what enters a
    tier is the tiering rule's decision.

    Args:
        number: 1 for the tier below the pool, and so on.
        most: contents that can exist at all, where that is known: no more rows are kept than that.

    Raises:
        InvalidArgument: `num_blocks` below 1.
    """

    def __init__(
        self, number: int, num_blocks: int, policy: EvictionPolicy, contents: Contents, most: int | None = None
    ) -> None:
        if num_blocks < 1:
            raise InvalidArgument(f"tier {number}: num_blocks must be at least 1, found {num_blocks}")
        super().__init__(policy, num_blocks, most)
        self.number, self.contents, self.counts = number, contents, Counts()
        self._pinned: dict[Key, int] = {}
        self._parent_of: dict[Key, Key] = {}
        self._unread: set[Key] = set()
        self._children: dict[Key, int] = {}
        asked = ("depth", "num_tokens", "tenant", "next_use", "partial", "last_request")
        self.attach(
            **{name: self.by_name(getattr(contents, name)) for name in asked},
            children=self.by_name(lambda key: self._children.get(key, 0)),
            key=self.by_name(contents.name),
            parent=self.by_name(lambda key: self.block_of.get(contents.parent(key), 0)),
        )

    def __contains__(self, key: Key) -> bool:
        return key in self.block_of

    def __len__(self) -> int:
        return len(self.block_of)

    def pin(self, keys: Sequence[Key], now: float) -> None:
        """These contents, deepest first, cannot be evicted until `unpin`."""
        pinned, self.host.now = self._pinned, now
        self.host.pin([self.block_of[key] for key in keys if key not in pinned])
        for key in keys:
            pinned[key] = pinned.get(key, 0) + 1

    def use(self, keys: Sequence[Key], now: float) -> None:
        """A request uses these contents, deepest first: they are pinned and hit here."""
        self.pin(keys, now)
        blocks = [self.block_of[key] for key in keys]
        for key, block in zip(keys, blocks, strict=True):
            self.last_access[block] = self.contents.last_use(key)
            self.hits[block] += 1
        self.host.hit(blocks)

    def unpin(self, keys: Iterable[Key], now: float) -> None:
        """One pin less of each of these; those that have none left can be evicted again."""
        idle = []
        for key in keys:
            self._pinned[key] -= 1
            if not self._pinned[key]:
                del self._pinned[key]
                idle.append(key)
        idle.sort(key=self.contents.depth, reverse=True)
        self.host.now = now
        self.host.release([self.block_of[key] for key in idle])

    def is_pinned(self, key: Key) -> bool:
        """Whether a request or a copy needs this content where it lies."""
        return key in self._pinned

    def hit(self, key: Key) -> None:
        """This content is part of a request's cached prefix."""
        self.counts.hits += 1
        self._unread.discard(key)

    def victim(self, now: float) -> Key | None:
        """Evict what the policy names, and name it; None where everything is pinned."""
        if len(self._pinned) == len(self.block_of):
            return None
        self.host.now = now
        key = self.name_of[self.host.victim()]
        self.counts.evicted += 1
        self.counts.unread += key in self._unread
        self._forget(key, now)
        return key

    def insert(self, key: Key, now: float, *, pinned: bool) -> None:
        """Store a content that is not held; there must be room. Pinned: until `unpin`."""
        self._unread.add(key)
        self.counts.stored += 1
        self._hold(key, now, pinned=pinned)

    def adopt(self, key: Key, now: float) -> None:
        """Hold a content that an earlier process, or another one, has stored; there must be room."""
        self.counts.adopted += 1
        self._hold(key, now, pinned=False)

    def _hold(self, key: Key, now: float, *, pinned: bool) -> None:
        block = self.hold(key, self.contents.last_use(key))
        parent = self._parent_of[key] = self.contents.parent(key)
        self._children[parent] = self._children.get(parent, 0) + 1
        self.counts.peak = max(self.counts.peak, len(self.block_of))
        self.host.now = now
        self.host.admit((block,))
        if pinned:
            self._pinned[key] = 1
        else:
            self.host.release((block,))

    def drop(self, keys: Iterable[Key], now: float) -> None:
        """These contents, which are held and not pinned, leave the tier."""
        for key in keys:
            self.counts.dropped += 1
            self._forget(key, now)

    def lose(self, key: Key, now: float) -> None:
        """The bytes of a content, which is not pinned, could not be written or read, or are not sound: it is held no
        longer."""
        self.counts.lost += 1
        self._forget(key, now)

    @property
    def num_unread(self) -> int:
        """Blocks stored that were never a hit: those evicted so, and those still here."""
        return self.counts.unread + len(self._unread)

    def facts(self, block_bytes: int) -> dict[str, int]:
        """What happened so far, as results name it."""
        counts = self.counts
        return {
            "hit_blocks": counts.hits,
            "bytes_in": counts.stored * block_bytes,
            "bytes_out": counts.read * block_bytes,
            "evictions": counts.evicted,
            "unread_blocks": self.num_unread,
            "peak_blocks": counts.peak,
        }

    def check(self) -> None:
        """Raise AssertionError where the blocks do not add up."""
        counts, num_held = self.counts, len(self.block_of)
        assert num_held <= self.num_blocks, f"tier {self.number} holds {num_held} blocks of {self.num_blocks}"
        gone = counts.evicted + counts.dropped + counts.lost
        assert counts.stored + counts.adopted - gone == num_held, (counts, num_held)
        assert all(self.name_of[block] == key for key, block in self.block_of.items())
        assert num_held + len(self.free) == len(self.name_of) - 1
        assert self._pinned.keys() <= self.block_of.keys()
        assert sum(self.host.candidate) == num_held - len(self._pinned)
        assert self._unread <= self.block_of.keys() == self._parent_of.keys()
        assert sum(self._children.values()) == num_held

    def _forget(self, key: Key, now: float) -> None:
        self.host.now = now
        self.forget(key)
        self._unread.discard(key)
        parent = self._parent_of.pop(key)
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
