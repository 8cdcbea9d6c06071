"""Rules that hold of an allocator between calls, and while one is made: the judging half of `driver.Driver`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from framework.errors import FrameworkError, UnknownRequest
from framework.interfaces.allocator import Allocator, CacheEvent
from framework.types import BlockCopy, Namespace, RequestId, RequestInfo, TableChange, TokenArray


@dataclass(frozen=True)
class Meaning:
    """What one slot's KV stands for: its namespace, all tokens up to it, and the oldest weights it depends on."""

    namespace: Namespace
    tokens: tuple[int, ...]
    epoch: int


Key = tuple[Namespace, tuple[int, ...]]


@dataclass
class Truth:
    """Slots by (block, offset); a slot that is absent is poison: handed out and not written since."""

    block_size: int
    epoch: int = 0
    slots: dict[tuple[int, int], Meaning] = field(default_factory=dict)
    published: dict[Key, int] = field(default_factory=dict)
    """The block that first published each full block's content, while it and all its ancestors last."""

    def read(self, table: list[int], position: int) -> Meaning | None:
        """What the token at `position` would find."""
        return self.slots.get((table[position // self.block_size], position % self.block_size))

    def next_meaning(self, table: list[int], namespace: Namespace, tokens: list[int], position: int) -> Meaning:
        """What writing token `position` makes of its slot, given what its predecessor's slot holds."""
        before = self.read(table, position - 1) if position else None
        epoch = self.epoch if position == 0 else min(self.epoch, before.epoch if before else self.epoch)
        return Meaning(namespace, tuple(tokens[: position + 1]), epoch)

    def write(self, block: int, offset: int, meaning: Meaning) -> None:
        """The forward pass stored one token."""
        self.slots[block, offset] = meaning

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """The pool did these copies, in order."""
        for pair in copies:
            for offset in range(self.block_size):
                meaning = self.slots.get((pair.source, offset))
                self.slots.pop((pair.destination, offset), None)
                if meaning is not None:
                    self.slots[pair.destination, offset] = meaning

    def poison(self, blocks: Iterable[int]) -> None:
        """These blocks were handed out: their next owner may overwrite them at any time."""
        for block in blocks:
            self.unpublish(block)
            for offset in range(self.block_size):
                self.slots.pop((block, offset), None)

    def unpublish(self, block: int) -> None:
        """The block's content need not be found any more, nor what follows it."""
        for key in [key for key, holder in self.published.items() if holder == block]:
            for other in list(self.published):
                if other[0] == key[0] and other[1][: len(key[1])] == key[1]:
                    del self.published[other]

    def publish(self, table: list[int], namespace: Namespace, tokens: list[int], first: int, last: int) -> None:
        """A commit filled blocks `first` to `last` - 1 of this table. Content under old weights is never published."""
        for index in range(first, last):
            end = (index + 1) * self.block_size
            meaning = self.read(table, end - 1)
            parent = (namespace, tuple(tokens[: index * self.block_size]))
            if meaning is None or meaning.epoch < self.epoch or (index and parent not in self.published):
                return
            self.published.setdefault((namespace, tuple(tokens[:end])), table[index])

    def must_hit(self, namespace: Namespace, tokens: list[int]) -> int:
        """Tokens of the longest prefix that is published whole, and leaves one token to compute."""
        size = self.block_size
        for end in range(size, len(tokens), size):
            if (namespace, tuple(tokens[:end])) not in self.published:
                return end - size
        return max(0, (len(tokens) - 1) // size * size)

    def reset(self) -> None:
        """The weights changed."""
        self.epoch += 1
        self.published.clear()


class Contained(Exception):
    """A tolerated error ended a step; the driver has checked what it left behind."""


class Violation(AssertionError):
    """A component broke a rule. The text holds the rule, what was seen, and the calls that led there."""


@dataclass(frozen=True)
class Traits:
    """What an allocator was seen to do, so that rules about sharing bind only those that share.

    Attributes:
        shares: content is found again by later requests.
        exact: a table is as long as its tokens need, and no longer.
        capacity: tokens that one request may hold in an empty pool.
        kept: blocks that an admission leaves to running requests.
        strict: every published prefix must be found: it shares, and the hash scheme does not collide.
    """

    shares: bool
    exact: bool
    capacity: int
    kept: int
    strict: bool


@dataclass
class Live:
    """What the engine knows of a running request.

    Attributes:
        tokens: known tokens; the first `written` have KV, the first `committed` were committed, `room` were asked for.
        must_extend: its blocks may be shared since the last extend.
        old: it was running when the weights changed; what it publishes later may be left out of the cache.
        num_null: leading blocks that no layer reads any more and that the allocator has unreferenced.
    """

    info: RequestInfo
    tokens: list[int]
    written: int
    committed: int
    room: int
    must_extend: bool
    old: bool = False
    num_null: int = 0


class Judge:
    """Calls an allocator for an engine that it knows all of, and compares what it says with what the slots hold.

    Args:
        repeats: two lookups of one prompt answer alike: the hash scheme's names do not change from call to call.
    """

    def __init__(self, allocator: Allocator, traits: Traits, about: str = "", *, repeats: bool = True) -> None:
        self.allocator, self.traits, self.about, self.repeats = allocator, traits, about, repeats
        self.size = allocator.block_size
        self.truth = Truth(self.size)
        self.live: dict[int, Live] = {}
        self.tables: dict[int, list[int]] = {}
        self.history: list[str] = []
        self.events: list[CacheEvent] = []
        self.findable: dict[int, bytes] = {}
        self.prompts: dict[tuple[Namespace, tuple[int, ...]], TokenArray] = {}
        self.totals: Counter[str] = Counter()
        self.next_id, self.now = 1, 0.0
        self.tolerates: type[FrameworkError] | None = None
        allocator.listen(self._heard)

    # Reporting

    def fail(self, rule: str, seen: object = "") -> Violation:
        """The error to raise: the rule, what was seen, every call so far."""
        calls = "\n".join(f"  {number}. {call}" for number, call in enumerate(self.history, 1))
        text = f"{rule}: {seen}" if seen != "" else rule
        return Violation(f"{text}\n{self.about or type(self.allocator).__name__}\ncalls so far:\n{calls}")

    def need(self, holds: bool, rule: str, seen: object = "") -> None:
        """Raise unless the rule holds."""
        if not holds:
            raise self.fail(rule, seen)

    def _heard(self, event: CacheEvent) -> None:
        self.events.append(event)
        self.need(event.kind in ("admit", "evict"), "an event is neither admit nor evict", event)
        self.need(len(event.blocks) == len(event.hashes) > 0, "an event has not one hash for each of its blocks", event)
        for block, key in zip(event.blocks, event.hashes, strict=True):
            if event.kind == "admit":
                self.need(block not in self.findable, "a block is admitted twice without an evict between", event)
                self.findable[block] = key
            else:
                self.need(self.findable.pop(block, None) == key, "evict of what was never admitted", event)

    # Calling

    def snapshot(self) -> tuple[Any, ...]:
        """All that the interface shows: tables, counts, and what a few prompts would hit."""
        latest = list(itertools.islice(reversed(self.prompts.items()), 3 if self.repeats else 0))
        hits = [self.allocator.lookup(prompt, space) for (space, _), prompt in reversed(latest)]
        tables = {request: self._table(request) for request in self.live}
        return tables, replace(self.allocator.stats(), collisions=0), [(hit.num_tokens, hit.blocks) for hit in hits]

    def call(self, text: str, method: Callable[[], Any], *allowed: type[FrameworkError]) -> Any:
        """Make one call; an allowed error is returned, and must have changed nothing. Any other fails the rule."""
        self.history.append(text)
        before = self.snapshot() if allowed else ()
        try:
            result = method()
        except allowed as error:
            self.history[-1] += f" raised {type(error).__name__}"
            after = self.snapshot()
            self.need(after == before, f"a failed call changed something ({error})", f"\n{before}\n{after}")
            return error
        except Violation:
            raise
        except Exception as error:
            if self.tolerates is not None and isinstance(error, self.tolerates):
                self.history[-1] += f" raised {error}"
                self._recover()
                raise Contained from error
            names = ", ".join(kind.__name__ for kind in allowed) or "no error"
            raise self.fail(f"{text} raised {error!r}, where {names} is allowed") from error
        return result

    def _recover(self) -> None:
        """After a tolerated error: every table is as before or, if it was being freed, gone; no new one appeared."""
        for request in list(self.live):
            try:
                self._table(request)
            except UnknownRequest:
                self.need(self.history[-1].startswith(f"free(request {request})"), "an error took a table", request)
                for block in self.tables[request]:  # what a policy would not take back is given up
                    self.truth.unpublish(block)
                del self.live[request], self.tables[request]
        self.after()

    def _table(self, request: int) -> list[int]:
        return [int(block) for block in self.allocator.table(RequestId(request))]

    def _accept(self, request: int, change: TableChange | None, kept: tuple[int, ...] = ()) -> None:
        """Read a changed table, do the copies, and poison what was handed out."""
        old, new = self.tables.get(request, []), self._table(request)
        if change is not None:
            pairs = zip(old, new, strict=False)
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
            self.need(change.start == first, "TableChange.start is not the first entry that differs",
                      f"{change}, was {old}, is {new}")  # fmt: skip
            self._judge_copies(change, old, new)
            self.truth.copy(change.copies)
            self.totals["copied_blocks"] += len(change.copies)
        written = {pair.destination for pair in change.copies} if change else set()
        fresh = set(new) - set(old) - set(kept)
        for block in fresh:
            owners = [other for other, table in self.tables.items() if other != request and block in table]
            self.need(not owners, "a block that is in use was handed out", f"block {block}, of requests {owners}")
        for block in written:
            self.truth.unpublish(block)
        self.truth.poison(fresh - written)
        self.tables[request] = new

    def _judge_copies(self, change: TableChange, old: list[int], new: list[int]) -> None:
        seen: set[int] = set()
        for pair in change.copies:
            fresh = pair.destination in new and pair.destination not in old and pair.destination not in seen
            self.need(fresh, "a copy's destination is no fresh block of this table", f"{pair}, was {old}, is {new}")
            self.need(1 <= pair.source <= self.allocator.num_blocks and pair.source != pair.destination,
                      "a copy's source is no block", pair)  # fmt: skip
            seen.add(pair.destination)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    # After every call

    def after(self) -> None:
        """All rules that hold between calls."""
        self._tables_are_true()
        self._counts_are_right()
        try:
            self.allocator.check()
        except Exception as error:
            raise self.fail(f"check() raised {error!r}") from error

    def _tables_are_true(self) -> None:
        for request, row in self.live.items():
            table = self._table(request)
            self.need(table == self.tables[request], "a table changed that should not have",
                      f"request {request}: was {self.tables[request]}, is {table}")  # fmt: skip
            known = table[row.num_null :]
            self.need(all(1 <= block <= self.allocator.num_blocks for block in known) and len(set(known)) == len(known),
                      "a table names the null block, a block twice, or one outside the pool", table)  # fmt: skip
            blocks = self._blocks(row.room)
            fits = len(table) == blocks if self.traits.exact else len(table) >= blocks
            self.need(fits, "a table's length does not fit its tokens", f"{row.room} tokens, {table}")
            for position in range(row.num_null * self.size, row.written):
                meaning = self.truth.read(table, position)
                wanted = (row.info.namespace, tuple(row.tokens[: position + 1]))
                found = meaning and (meaning.namespace, meaning.tokens)
                if found != wanted:
                    raise self.fail("a request's KV is not its own any more",
                                    f"request {request} token {position}: finds {found}, wrote {wanted}")  # fmt: skip

    def _counts_are_right(self) -> None:
        stats = self.allocator.stats()
        counts = (stats.free_blocks, stats.cached_blocks, stats.used_blocks)
        self.need(stats.num_blocks == self.allocator.num_blocks == sum(counts) and min(counts) >= 0,
                  "free, cached and used blocks do not sum to num_blocks", stats)  # fmt: skip
        named = {block for table in self.tables.values() for block in table if block}
        right = stats.used_blocks == len(named) if self.traits.exact else stats.used_blocks >= len(named)
        if not right:
            raise self.fail("used_blocks is not the number of blocks that tables name", f"{stats}, {self.tables}")
        self.need(stats.num_requests == len(self.live), "num_requests is not the number of live tables", stats)
        for name in ("hit_tokens", "prompt_tokens", "copied_blocks"):
            if getattr(stats, name) != self.totals[name]:
                raise self.fail(f"{name} is not what was seen", f"{stats}, seen {self.totals[name]}")
