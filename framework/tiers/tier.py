"""One tier below the pool: which contents it holds, in the order of its own eviction policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from framework.errors import InvalidArgument
from framework.guard.policy import GuardedPolicy
from framework.interfaces.eviction import BlockView, ConstantColumn, EvictionPolicy
from framework.types import BlockHash, BlockId, RequestFacts

Key = Any
"""Names a content: hashable. A node's number in a cache-only replay, a block hash in an engine."""


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
        hits: blocks of requests' cached prefixes that lay here; `hit_tokens` their tokens.
        stored: written into this tier. `read`: read from it, by a load or to be stored in the next tier.
        evicted: given up by the policy to make room. `dropped`: left because the pool got the content back.
        refused: stores for which no block could be evicted.
        adopted: that an earlier process had stored.
        lost: held until a write or a read of their bytes failed, or they proved not sound.
        unread: evicted without ever having been a hit here.
        peak: most blocks held at once.
    """

    hits: int = 0
    hit_tokens: int = 0
    stored: int = 0
    read: int = 0
    evicted: int = 0
    dropped: int = 0
    refused: int = 0
    lost: int = 0
    adopted: int = 0
    unread: int = 0
    peak: int = 0


class Tier:
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
        self.number, self.num_blocks, self.contents = number, num_blocks, contents
        self.policy, self.counts = GuardedPolicy(policy), Counts()
        self.block_of: dict[Key, BlockId] = {}
        rows = min(num_blocks, num_blocks if most is None else most) + 1
        self._rows, self._fresh = rows, 1
        self._free: list[BlockId] = []
        self._key_of: dict[BlockId, Key] = {}
        self._pinned: dict[Key, int] = {}
        self._parent_of: dict[Key, Key] = {}
        self._unread: set[Key] = set()
        self._candidates = bytearray(rows)
        self._children: dict[Key, int] = {}
        self._admitted, self._last_access, self._hits = ([0] * rows for _ in range(3))
        self.policy.attach(self._view())

    def _view(self) -> BlockView:
        facts = self.contents
        by_key = self._column
        return _View(
            depth=by_key(facts.depth),
            num_tokens=by_key(facts.num_tokens),
            admitted=self._admitted,
            last_access=self._last_access,
            hits=self._hits,
            priority=ConstantColumn(0, self._rows),
            tenant=by_key(facts.tenant),
            children=by_key(lambda key: self._children.get(key, 0)),
            next_use=by_key(facts.next_use),
            key=by_key(facts.name),
            parent=by_key(lambda key: self.block_of.get(facts.parent(key), 0)),
            partial=by_key(facts.partial),
            last_request=by_key(facts.last_request),
            capacity=self.num_blocks,
        )

    def _column(self, fact: Callable[[Key], Any]) -> Sequence[Any]:
        return _ByKey(self._key_of, fact, self._rows)

    def __contains__(self, key: Key) -> bool:
        return key in self.block_of

    def __len__(self) -> int:
        return len(self.block_of)

    def pin(self, keys: Sequence[Key], now: float) -> None:
        """These contents, deepest first, cannot be evicted until `unpin`."""
        pinned = self._pinned
        idle = tuple(self.block_of[key] for key in keys if key not in pinned)
        if idle:
            self.policy.pin(idle, now)
        for block in idle:
            self._candidates[block] = 0
        for key in keys:
            pinned[key] = pinned.get(key, 0) + 1

    def use(self, keys: Sequence[Key], now: float) -> None:
        """A request uses these contents, deepest first: they are pinned and hit here."""
        self.pin(keys, now)
        blocks = tuple(self.block_of[key] for key in keys)
        for key, block in zip(keys, blocks, strict=True):
            self._last_access[block] = self.contents.last_use(key)
            self._hits[block] += 1
        self.policy.hit(blocks, now)

    def unpin(self, keys: Iterable[Key], now: float) -> None:
        """One pin less of each of these; those that have none left can be evicted again."""
        idle = []
        for key in keys:
            self._pinned[key] -= 1
            if not self._pinned[key]:
                del self._pinned[key]
                idle.append(key)
        if idle:
            idle.sort(key=self.contents.depth, reverse=True)
            self._release(tuple(self.block_of[key] for key in idle), now)

    def is_pinned(self, key: Key) -> bool:
        """Whether a request or a copy needs this content where it lies."""
        return key in self._pinned

    def hit(self, key: Key, tokens: int) -> None:
        """This content is part of a request's cached prefix, `tokens` of it its own."""
        self.counts.hits += 1
        self.counts.hit_tokens += tokens
        self._unread.discard(key)

    def victim(self, now: float) -> Key | None:
        """Evict what the policy names, and name it; None where everything is pinned."""
        if len(self._pinned) == len(self.block_of):
            return None
        key = self._key_of[BlockId(self.policy.victim(now, self._candidates))]
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
        block = self._free.pop() if self._free else self._next_row()
        self.block_of[key], self._key_of[block] = block, key
        self._admitted[block] = self._last_access[block] = self.contents.last_use(key)
        self._hits[block] = 0
        parent = self._parent_of[key] = self.contents.parent(key)
        self._children[parent] = self._children.get(parent, 0) + 1
        self.counts.peak = max(self.counts.peak, len(self.block_of))
        self.policy.admit((block,), now)
        if pinned:
            self._pinned[key] = 1
        else:
            self._release((block,), now)

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
            "num_blocks": self.num_blocks,
            "hit_blocks": counts.hits,
            "hit_tokens": counts.hit_tokens,
            "bytes_in": counts.stored * block_bytes,
            "bytes_out": counts.read * block_bytes,
            "evictions": counts.evicted,
            "unread_blocks": self.num_unread,
            "refused_blocks": counts.refused,
            "peak_blocks": counts.peak,
        }

    def check(self) -> None:
        """Raise AssertionError where the blocks do not add up."""
        counts, held = self.counts, len(self.block_of)
        assert held <= self.num_blocks, f"tier {self.number} holds {held} blocks of {self.num_blocks}"
        gone = counts.evicted + counts.dropped + counts.lost
        assert counts.stored + counts.adopted - gone == held, (counts, held)
        assert {block: key for key, block in self.block_of.items()} == self._key_of
        assert held + len(self._free) == self._fresh - 1
        assert self._pinned.keys() <= self.block_of.keys()
        assert sum(self._candidates) == held - len(self._pinned)
        assert self._unread <= self.block_of.keys() == self._parent_of.keys()
        assert sum(self._children.values()) == held

    def _release(self, blocks: tuple[BlockId, ...], now: float) -> None:
        for block in blocks:
            self._candidates[block] = 1
        self.policy.release(blocks, now)

    def _next_row(self) -> BlockId:
        self._fresh += 1
        return BlockId(self._fresh - 1)

    def _forget(self, key: Key, now: float) -> None:
        block = self.block_of[key]
        self.policy.evicted(block, now)
        self._candidates[block] = 0
        del self.block_of[key], self._key_of[block]
        self._free.append(block)
        self._unread.discard(key)
        parent = self._parent_of.pop(key)
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]


@dataclass(frozen=True, slots=True)
class _View(BlockView):
    capacity: int = 0

    @property
    def num_blocks(self) -> int:
        return self.capacity


class _ByKey(Sequence[Any]):
    """A column kept by content instead of by block."""

    def __init__(self, key_of: dict[BlockId, Key], fact: Callable[[Key], Any], rows: int) -> None:
        self._key_of, self._fact, self._num_rows = key_of, fact, rows

    def __getitem__(self, block: Any) -> Any:
        return self._fact(self._key_of[block])

    def __len__(self) -> int:
        return self._num_rows
