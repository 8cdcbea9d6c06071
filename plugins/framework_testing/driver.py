"""A driver that calls an allocator as an engine does, and checks every rule of its interface on the way.

`Driver` plays the engine: it makes every call an engine may make, right and wrong ones, does the writes and the copies
in a `Truth`, and after each call `Judge` compares what the allocator says with what the slots hold. Both look at
nothing but the interface.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from framework.errors import (
    DuplicateRequest,
    FrameworkError,
    InvalidArgument,
    OutOfBlocks,
    StaleHit,
    UnknownRequest,
)
from framework.interfaces.allocator import Allocator, CacheEvent, Hit
from framework.types import BlockCopy, Namespace, RequestId, RequestInfo, TableChange, TokenArray, as_tokens


@dataclass(frozen=True)
class Meaning:
    """What one slot's KV stands for: all that is at its place and before it, and the oldest weights it depends on."""

    key: Key
    epoch: int


Key = tuple[Namespace, tuple[Any, ...]]
"""A namespace, and each token in it: with contents a token, and the place of that token within each of them."""


def key_of(namespace: Namespace, tokens: Sequence[int]) -> Key:
    """What these tokens stand for in this namespace."""
    if not namespace.contents:
        return namespace, tuple(tokens)
    return namespace.root, tuple(
        (token, *((name, place - start) for start, end, name in namespace.contents if start <= place < end))
        if any(start <= place < end for start, end, _ in namespace.contents) else token
        for place, token in enumerate(tokens)
    )  # fmt: skip


_MAKE_ROOM = ("allocate(", "extend(", "fork(", "commit(")
"""Calls in which lost content was evicted: other blocks took its room."""


@dataclass
class Truth:
    """Slots by (block, offset); a slot that is absent is poison: handed out and not written since.

    `ahead`: what was published and the step at hand will write, before any row of it attends and after all copies.
    """

    block_size: int
    epoch: int = 0
    slots: dict[tuple[int, int], Meaning] = field(default_factory=dict)
    ahead: dict[tuple[int, int], Meaning] = field(default_factory=dict)
    published: dict[Key, int] = field(default_factory=dict)
    """The block that first published each full block's content, while it and all its ancestors last."""

    def read(self, table: list[int], position: int) -> Meaning | None:
        """What the token at `position` would find."""
        slot = table[position // self.block_size], position % self.block_size
        return self.slots.get(slot) or self.ahead.get(slot)

    def next_meaning(self, table: list[int], namespace: Namespace, tokens: list[int], position: int) -> Meaning:
        """What writing token `position` makes of its slot, given what its predecessor's slot holds."""
        before = self.read(table, position - 1) if position else None
        epoch = self.epoch if position == 0 else min(self.epoch, before.epoch if before else self.epoch)
        return Meaning(key_of(namespace, tokens[: position + 1]), epoch)

    def write(self, block: int, offset: int, meaning: Meaning) -> None:
        """The forward pass stored one token."""
        self.slots[block, offset] = meaning
        self.ahead.pop((block, offset), None)

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
                self.ahead.pop((block, offset), None)

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
            parent = key_of(namespace, tokens[: index * self.block_size])
            if meaning is None or meaning.epoch < self.epoch or (index and parent not in self.published):
                return
            self.published.setdefault(key_of(namespace, tokens[:end]), table[index])

    def must_hit(self, namespace: Namespace, tokens: list[int]) -> int:
        """Tokens of the longest prefix that is published whole, and leaves one token to compute."""
        size = self.block_size
        for end in range(size, len(tokens), size):
            if key_of(namespace, tokens[:end]) not in self.published:
                return end - size
        return max(0, (len(tokens) - 1) // size * size)

    def reset(self) -> None:
        """The weights changed."""
        self.epoch += 1
        self.published.clear()
        self.ahead.clear()


def _named(namespace: Namespace) -> str:
    """The fields that are set, or "plain"."""
    named = (f"{field.name} {getattr(namespace, field.name)!r}" for field in fields(namespace))
    return ", ".join(text for text in named if not text.endswith(("''", "()"))) or "plain"


class Violation(AssertionError):
    """A component broke a rule. The text holds the rule, what was seen, and the calls that led there."""


def shortened(seen: object, most: int = 400) -> str:
    """As text; of a long one the beginning and the end."""
    text = str(seen)
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def last_calls(history: Sequence[str], most: int = 1200) -> str:
    """The last calls that fit into so many characters, numbered, one a line; the very last one in any case."""
    lines: list[str] = []
    for number in range(len(history), 0, -1):
        line = f"  {number}. {shortened(history[number - 1], 160)}"
        if lines and sum(map(len, lines)) + len(line) > most:
            lines.append(f"  ({number} calls before)")
            break
        lines.append(line)
    return "\n".join(["calls so far:", *reversed(lines)])


@dataclass(frozen=True)
class Traits:
    """What an allocator was seen to do, so that rules about sharing bind only those that share.

    Attributes:
        shares: content is found again by later requests.
        exact: a table is as long as its tokens need, and no longer: of every length, allocated at once or grown. Else
            it is at least as long.
        capacity: tokens that one request may hold in an empty pool.
        kept: blocks that an admission leaves to running requests.
        shares_ahead: what a step fills is found as soon as it is published, before it is computed.
        strict: every published prefix must be found: it shares, and the hash scheme does not collide.
    """

    shares: bool
    exact: bool
    capacity: int
    kept: int
    shares_ahead: bool
    strict: bool


@dataclass
class Live:
    """What the engine knows of a running request.

    Attributes:
        tokens: known tokens; the first `written` have KV, the first `committed` were committed, `room` were asked for.
        must_extend: its blocks may be shared since the last extend.
        old: it was running when the weights changed; what it publishes later may be left out of the cache.
        num_null: leading blocks that no layer reads any more and that the allocator has unreferenced.
        planned: tokens that are written once the step at hand is computed, as was published; 0 if it publishes nothing.
    """

    info: RequestInfo
    tokens: list[int]
    written: int
    committed: int
    room: int
    must_extend: bool
    old: bool = False
    num_null: int = 0
    planned: int = 0


class Judge:
    """Calls an allocator for an engine that it knows all of, and compares what it says with what the slots hold.

    Args:
        about: what a message says of it.
        repeats: two lookups of one prompt answer alike: the hash scheme's names do not change from call to call.
    """

    def __init__(self, allocator: Allocator, traits: Traits, about: str, *, repeats: bool) -> None:
        self.allocator, self.traits, self.about, self.repeats = allocator, traits, about, repeats
        self.size = allocator.block_size
        self.truth = Truth(self.size)
        self.live: dict[int, Live] = {}
        self.tables: dict[int, list[int]] = {}
        self.history: list[str] = []
        self.events: list[CacheEvent] = []
        self.findable: dict[int, bytes] = {}
        self.prompts: dict[tuple[Namespace, tuple[int, ...]], TokenArray] = {}
        self.hits: list[tuple[list[int], Namespace, Hit]] = []
        self.totals: Counter[str] = Counter()
        self.next_id, self.now = 1, 0.0
        allocator.listen(self._heard)

    def fail(self, rule: str, seen: object = "") -> Violation:
        """The error to raise: the rule, what was seen, every call so far."""
        text = f"{rule}: {shortened(seen)}" if seen != "" else rule
        return Violation(f"{text}\n{self.about}\n{last_calls(self.history)}")

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
                self.totals["evictions"] += self.history[-1].startswith(_MAKE_ROOM)

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
            changed = next(((was, now) for was, now in zip(before, after, strict=True) if was != now), ())
            self.need(
                not changed,
                f"a failed call changed something ({error})",
                "\nwas {}\nis {}".format(*changed or ("", "")),
            )
            return error
        except Violation:
            raise
        except Exception as error:
            names = ", ".join(kind.__name__ for kind in allowed) or "no error"
            raise self.fail(f"{text} raised {error!r}, where {names} is allowed") from error
        return result

    def _table(self, request: int) -> list[int]:
        return [int(block) for block in self.allocator.table(RequestId(request))]

    def _accept(self, request: int, change: TableChange | None, kept: tuple[int, ...] = ()) -> int:
        """Read a changed table, do the copies, and poison what was handed out; returns how many blocks that were."""
        old, new = self.tables.get(request, []), self._table(request)
        if change is not None:
            self._judge_change(change, old, new)
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
        return len(fresh)

    def _judge_change(self, change: TableChange, old: list[int], new: list[int]) -> None:
        """The change names the first entry that differs, and copies into fresh blocks of this table alone."""
        differs = (index for index, (before, after) in enumerate(zip(old, new, strict=False)) if before != after)
        start = next(differs, min(len(old), len(new)))
        rule = "TableChange.start is not the first entry that differs"
        self.need(change.start == start, rule, f"{change}, was {old}, is {new}")
        seen: set[int] = set()
        for pair in change.copies:
            fresh = pair.destination in new and pair.destination not in old and pair.destination not in seen
            self.need(fresh, "a copy's destination is no fresh block of this table", f"{pair}, was {old}, is {new}")
            self.need(1 <= pair.source <= self.allocator.num_blocks and pair.source != pair.destination,
                      "a copy's source is no block", pair)  # fmt: skip
            seen.add(pair.destination)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def after(self) -> None:
        """All rules that hold between calls."""
        self._tables_are_true()
        self._counts_are_right()
        self._metadata_is_sound()

    def _metadata_is_sound(self) -> None:
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
            need = f"{row.room} tokens need {self._blocks(row.room)} blocks, {table}"
            self.need(len(table) >= self._blocks(row.room), "a table is too short for its tokens", need)
            for position in range(row.num_null * self.size, row.written):
                meaning = self.truth.read(table, position)
                wanted = key_of(row.info.namespace, row.tokens[: position + 1])
                content = meaning and meaning.key
                if content != wanted:
                    raise self.fail("a request's KV is not its own any more",
                                    f"request {request} token {position}: finds {content}, wrote {wanted}")  # fmt: skip

    def _counts_are_right(self) -> None:
        stats = self.allocator.stats()
        counts = (stats.free_blocks, stats.cached_blocks, stats.used_blocks)
        self.need(stats.num_blocks == self.allocator.num_blocks == sum(counts) and min(counts) >= 0,
                  "free, cached and used blocks do not sum to num_blocks", stats)  # fmt: skip
        named = {block for table in self.tables.values() for block in table if block}
        if stats.used_blocks != len(named):
            raise self.fail("used_blocks is not the number of blocks that tables name", f"{stats}, {self.tables}")
        self.need(stats.num_requests == len(self.live), "num_requests is not the number of live tables", stats)
        for name in ("hit_tokens", "prompt_tokens", "copied_blocks", "evictions"):
            if name == "evictions" and not self.events:
                continue  # who sends no events shows none
            if getattr(stats, name) != self.totals[name]:
                counted = f"{getattr(stats, name)}, seen {self.totals[name]}; {stats}"
                raise self.fail(f"{name} is not what was seen", counted)
        if self.traits.strict and stats.collisions:
            raise self.fail("collisions are counted where no two names are equal", stats)


class Driver(Judge):
    """An engine without a model. Every `do_*` method is one step of a history; each checks everything afterwards."""

    def do_lookup(self, tokens: list[int], namespace: Namespace) -> Hit:
        """Ask twice; the answer must be true, as long as can be, and change nothing."""
        prompt = as_tokens(tokens)
        before = replace(self.allocator.stats(), collisions=0)
        text = f"lookup({tokens}, {_named(namespace)})"
        hit: Hit = self.call(text, lambda: self.allocator.lookup(prompt, namespace))
        self.history[-1] += f" -> {hit.num_tokens} tokens in {list(hit.blocks)}"
        again = self.call("lookup as before", lambda: self.allocator.lookup(prompt, namespace, hit))
        after = replace(self.allocator.stats(), collisions=0)
        same = (hit.num_tokens, hit.blocks) == (again.num_tokens, again.blocks)
        self.need(same or not self.repeats, "two lookups differ", again)
        if before != after:
            raise self.fail("lookup changed the counts", f"{before} {after}")
        self.need(prompt.tolist() == tokens, "lookup wrote to the caller's tokens", prompt)
        self.need(0 <= hit.num_tokens <= max(0, len(tokens) - 1), "a hit covers the whole prompt",
                  f"{hit.num_tokens} of {len(tokens)} tokens")  # fmt: skip
        self.need(len(hit.blocks) == -(-hit.num_tokens // self.size), "a hit's blocks do not fit its tokens", hit)
        for position in range(hit.num_tokens):
            meaning = self.truth.read(list(hit.blocks), position)
            wanted = (key_of(namespace, tokens[: position + 1]), self.truth.epoch)
            content = meaning and (meaning.key, meaning.epoch)
            if content != wanted:
                raise self.fail("a hit serves KV that is not this prompt's",
                                f"token {position} of {tokens} finds {content}, wanted {wanted}")  # fmt: skip
        if self.traits.strict:
            longest = self.truth.must_hit(namespace, tokens)
            self.need(hit.num_tokens >= longest, "a published prefix is not found",
                      f"{hit.num_tokens} tokens hit, {longest} are published")  # fmt: skip
        if hit.num_tokens:
            self.hits.append((tokens, namespace, hit))
        return hit

    def do_admit(self, tokens: list[int], namespace: Namespace, more: int = 0, hit: Hit | None = None) -> int | None:
        """Look up, ask, allocate. Returns the request's id, or None when it was refused."""
        stale = hit is not None
        hit = self.do_lookup(tokens, namespace) if hit is None else hit
        number = RequestId(self.next_id)
        self.next_id += 1
        info = RequestInfo(id=number, max_total_tokens=len(tokens) + more, namespace=namespace)
        prompt, stats = as_tokens(tokens), self.allocator.stats()
        fits = not stale and self.call("fits", lambda: self.allocator.fits(info, prompt, hit))
        text = f"allocate(request {number}, {tokens}, {_named(namespace)}, hit of {hit.num_tokens})"
        allowed: tuple[type[FrameworkError], ...] = (OutOfBlocks, StaleHit) if stale else (OutOfBlocks,)
        if not tokens:
            allowed = (*allowed, InvalidArgument)
        result = self.call(text, lambda: self.allocator.allocate(info, prompt, hit), *allowed)
        if isinstance(result, InvalidArgument):
            return None
        if not stale:
            self.need(fits == (result is None), "fits and allocate disagree", f"fits said {fits}")
        new = self._blocks(len(tokens)) - len(hit.blocks)
        if isinstance(result, FrameworkError):
            taken = sum(1 for block in hit.blocks if not any(block in table for table in self.tables.values()))
            have = stats.free_blocks + stats.cached_blocks - taken
            slack = self.allocator.num_blocks - self.traits.capacity // self.size
            kept = self.traits.kept if self.live else slack
            if self.traits.exact and not stale:
                self.need(new > have - kept, "refused although the blocks are there", f"needs {new}, has {have}")
            self.after()
            return None
        self.live[number] = Live(
            info, list(tokens), hit.num_tokens, hit.num_tokens, len(tokens), must_extend=hit.num_tokens % self.size != 0
        )
        self.prompts[namespace, tuple(tokens)] = prompt
        self.totals["hit_tokens"] += hit.num_tokens
        self.totals["prompt_tokens"] += len(tokens)
        table = self._table(number)
        self.need(tuple(table[: len(hit.blocks)]) == hit.blocks or hit.num_tokens % self.size != 0,
                  "the table does not start with the hit's blocks", f"{table}, {hit}")  # fmt: skip
        fresh = self._accept(number, None, kept=hit.blocks)
        self._few_evictions(stats.evictions, max(0, fresh - stats.free_blocks))
        self.after()
        return number

    def do_admit_late(self, pick: int) -> None:
        """Allocate with a hit of before: it is refused, or still true."""
        if self.hits:
            tokens, namespace, hit = self.hits[-1 - pick % len(self.hits)]
            self.do_admit(tokens, namespace, hit=hit)

    def _few_evictions(self, before: int, needed: int) -> None:
        evicted = self.allocator.stats().evictions - before
        self.need(evicted <= needed, "more blocks were evicted than needed", f"{evicted}, needed {needed}")

    def extend(self, request: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` of a request; False where there are no blocks for them."""
        row, stats = self.live[request], self.allocator.stats()
        grow = max(0, self._blocks(num_tokens) - len(self.tables[request]))
        text = f"extend(request {request}, {num_tokens})"
        method = lambda: self.allocator.extend(RequestId(request), num_tokens)  # noqa: E731
        change = self.call(text, method, OutOfBlocks)
        if isinstance(change, FrameworkError):
            if self.traits.exact:
                slack = self.allocator.num_blocks - self.traits.capacity // self.size
                have = stats.free_blocks + stats.cached_blocks - slack
                need = grow + (self._num_shared(request) if row.must_extend else 0)
                self.need(need > have, "refused although the blocks are there", f"{need} of {have}")
            self.after()
            return False
        self._few_evictions(stats.evictions, max(0, self._accept(request, change) - stats.free_blocks))
        row.must_extend, row.room = False, max(row.room, num_tokens)
        self.after()
        again = self.call(text, method)
        same = again == TableChange(len(self.tables[request])) and self._table(request) == self.tables[request]
        self.need(same, "extend is not idempotent", f"{again}, was {self.tables[request]}, is {self._table(request)}")
        return True

    def _num_shared(self, request: int) -> int:
        """Blocks from the committed length on that others can see."""
        others = {block for other, table in self.tables.items() if other != request for block in table}
        return len({*self.tables[request][self.live[request].committed // self.size :]} & (others | {*self.findable}))

    def do_compute(self, pick: int, count: int, extend: bool, commit: bool) -> None:
        """One step of a request: room, the writes of up to `count` tokens, and, if wished or a block filled, commit."""
        self.end_step()
        request = self.pick(pick)
        if request is None:
            return
        row = self.live[request]
        end = min(len(row.tokens), row.written + max(1, count))
        if end <= row.written:
            return
        short = end > len(self.tables[request]) * self.size
        if (extend or row.must_extend or short) and not self.extend(request, end):
            return
        self._compute(request, end)
        if commit or end // self.size > row.committed // self.size:
            self._commit(request)

    def _compute(self, request: int, end: int) -> None:
        row = self.live[request]
        for position in range(row.written, end):
            self._write(request, position)
        self.history.append(f"write tokens {row.written} to {end - 1} of request {request}")
        row.written = end

    def _write(self, request: int, position: int) -> None:
        row, table = self.live[request], self.tables[request]
        block, offset = table[position // self.size], position % self.size
        meaning = self.truth.next_meaning(table, row.info.namespace, row.tokens, position)
        if self.truth.read(table, position) == meaning:
            self.truth.write(block, offset, meaning)
            return
        users = [other for other, theirs in self.tables.items() if block in theirs and other != request]
        where = f"token {position} of request {request} in block {block}"
        self.need(not users, "a write lands in a block that others use", f"{where}, users {users}")
        published = any(holder == block for holder in self.truth.published.values())
        found = published if self.traits.strict else block in self.findable
        self.need(not found, "a write lands in a published block", where)
        self.truth.write(block, offset, meaning)

    def _commit(self, request: int) -> None:
        row = self.live[request]
        tokens = row.tokens[: row.written]
        prompt = as_tokens(tokens)
        change = self.call(f"commit(request {request}, {tokens})",
                           lambda: self.allocator.commit(RequestId(request), prompt))  # fmt: skip
        self.need(prompt.tolist() == tokens, "commit wrote to the caller's tokens", prompt)
        first, last = row.committed // self.size, row.written // self.size
        old, new = self.tables[request], self._table(request)
        self.need(not change.copies, "commit asks for copies", change)
        self._judge_change(change, old, new)
        self.tables[request], row.committed = new, row.written
        self._tables_are_true()
        if not row.old:
            self.truth.publish(new, row.info.namespace, row.tokens, first, last)
        self.prompts[row.info.namespace, (*tokens, 0)] = as_tokens([*tokens, 0])
        self.after()

    def do_publish(self, pick: int, count: int) -> None:
        """The step at hand will compute up to `count` tokens of a request: lookups may find what they fill."""
        request = self.pick(pick)
        if request is None:
            return
        row = self.live[request]
        end = min(len(row.tokens), row.written + max(1, count))
        short = end > len(self.tables[request]) * self.size
        if row.planned or end == row.written or ((short or row.must_extend) and not self.extend(request, end)):
            return
        table, tokens, namespace = self.tables[request], row.tokens[:end], row.info.namespace
        before = {*self.findable}
        self.call(f"publish(request {request}, {tokens})",
                  lambda: self.allocator.publish(RequestId(request), as_tokens(tokens)))  # fmt: skip
        row.planned = end
        filled = {*table[row.written // self.size : end // self.size]} & (self.findable.keys() - before)
        for position in range(row.written, end):
            block, offset = table[position // self.size], position % self.size
            if block in filled:
                meaning = self.truth.next_meaning(table, namespace, tokens, position)
                self.truth.slots.pop((block, offset), None)
                self.truth.ahead[block, offset] = meaning
        self.after()

    def end_step(self) -> None:
        """What the step at hand published has been computed: all of it is written, then committed, the last first."""
        computed = [request for request, row in self.live.items() if row.planned]
        for request in computed:
            self._compute(request, self.live[request].planned)
            self.live[request].planned = 0
        self.need(not self.truth.ahead, "what was published ahead was not written in place", self.truth.ahead)
        for request in reversed(computed):
            self._commit(request)

    def do_fail_step(self) -> None:
        """The step at hand is not computed: everything is forgotten, and who was in it ends."""
        broken = {*self.truth.ahead}
        ending = [other for other, row in self.live.items() if row.planned or self._reads(other, broken)]
        if not ending:
            return
        self._reset()
        for request in ending:
            self._free(request)
        self.after()

    def _reads(self, request: int, slots: set[tuple[int, int]]) -> bool:
        """Whether one of these slots holds KV that a request counts as written."""
        row, table = self.live[request], self.tables[request]
        read = range(row.num_null * self.size, row.written)
        return any((table[position // self.size], position % self.size) in slots for position in read)

    def _reset(self) -> None:
        self.call("reset()", self.allocator.reset)
        self.truth.reset()
        for row in self.live.values():
            row.old, row.planned = True, 0

    def do_append(self, pick: int, tokens: list[int]) -> None:
        """The model or a draft produced more tokens; they are not written yet."""
        request = self.pick(pick)
        if request is not None and len(self.live[request].tokens) + len(tokens) <= 24:
            self.live[request].tokens += tokens
            self.history.append(f"request {request} is now {self.live[request].tokens}")

    def do_fork(self, pick: int, back: int) -> int | None:
        """A child that shares all but the last `back` written tokens."""
        self.end_step()
        request = self.pick(pick)
        if request is None:
            return None
        row, child = self.live[request], RequestId(self.next_id)
        self.next_id += 1
        num_tokens = max(0, row.written - back, (row.num_null + 1) * self.size if row.num_null else 0)
        info = RequestInfo(id=child, max_total_tokens=row.info.max_total_tokens, namespace=row.info.namespace)
        change = self.call(f"fork(request {request}, child {child}, {num_tokens})",
                           lambda: self.allocator.fork(RequestId(request), info, num_tokens), OutOfBlocks)  # fmt: skip
        if isinstance(change, FrameworkError):
            self.after()
            return None
        row.must_extend = True
        self.live[child] = Live(
            info, row.tokens[: max(num_tokens, len(row.tokens) - back)], num_tokens, num_tokens, num_tokens,
            must_extend=True, old=row.old, num_null=row.num_null,
        )  # fmt: skip
        self._accept(child, change, kept=tuple(self.tables[request]))
        self.after()
        return child

    def do_unref_leading(self, pick: int, count: int) -> None:
        """All layers' windows have passed up to `count` blocks: what was unreferenced is null, the rest as before."""
        self.end_step()
        request = self.pick(pick)
        if request is None:
            return
        row, old = self.live[request], self.tables[request]
        num_tokens = min(count * self.size, row.written)
        text = f"unref_leading(request {request}, {num_tokens})"
        for _ in range(2):
            found = self.call(text, lambda: self.allocator.unref_leading(RequestId(request), num_tokens))
            new, most = self._table(request), max(row.num_null, num_tokens // self.size)
            self.need(row.num_null <= found <= most, "unref_leading took more blocks than no layer reads, or put some "
                      "back", f"{found} of {most}, {row.num_null} before")  # fmt: skip
            self.need(new == [0] * found + old[found:], "the table is not the old one with the null block in front",
                      f"{found} leading blocks, was {old}, is {new}")  # fmt: skip
            self.need(not found or (found + 1) * self.size <= row.committed,
                      "the last full block was unreferenced too", f"{found} of {old}")  # fmt: skip
            self.tables[request], row.num_null = new, found
            self.after()

    def do_free(self, pick: int) -> None:
        """End a request, at whatever point it is."""
        self.end_step()
        request = self.pick(pick)
        if request is not None:
            self._free(request)
            self.after()

    def _free(self, request: int) -> None:
        self.call(f"free(request {request})", lambda: self.allocator.free(RequestId(request)))
        del self.live[request], self.tables[request]

    def do_preempt(self, pick: int) -> None:
        """Free a request and admit it again with all its tokens."""
        request = self.pick(pick)
        if request is not None:
            row = self.live[request]
            self.do_free(pick)
            self.do_admit(row.tokens, row.info.namespace)

    def do_finish(self, pick: int) -> None:
        """Compute all that is known of a request, and end it."""
        self.do_compute(pick, 99, extend=True, commit=True)
        self.do_free(pick)

    def do_branch(self, pick: int, back: int, end_parent: bool) -> None:
        """Fork, perhaps end the parent, then let who lives write one token; the child's differs from the parent's."""
        parent, child = self.pick(pick), self.do_fork(pick, back)
        if parent is None or child is None:
            return
        theirs, position = self.live[parent].tokens, len(self.live[child].tokens)
        child_token = 1 - theirs[position] if position < len(theirs) else 1
        if end_parent:
            self.do_free(self._place(parent))
        for token, request in ((1 - child_token, parent), (child_token, child)):
            if request in self.live:
                self.do_append(self._place(request), [token])
                self.do_compute(self._place(request), 99, extend=True, commit=True)

    def do_follow(self, pick: int, count: int, computed: bool) -> None:
        """Publish what a step computes, admit who shares it and publishes more, and so on; it ends, or fails."""
        owner: int | None = self.pick(pick)
        for token in (0, 1):
            if owner in self.live:
                row = self.live[owner]
                self.do_publish(self._place(owner), 1 + 2 * count)
                owner = self.do_admit([*row.tokens, token], row.info.namespace)
        if computed:
            self.end_step()
        else:
            self.do_fail_step()

    def do_reset(self, pick: int) -> None:
        """The weights changed while a request computes."""
        self.do_compute(pick, 1, extend=True, commit=False)
        self._reset()
        self.after()

    def do_advance(self) -> None:
        """Time passes."""
        self.now += 1.0
        self.allocator.advance(self.now)

    def do_wrong(self, kind: str, pick: int) -> None:
        """A call no engine should make: each has one right error, and changes nothing."""
        request = self.pick(pick)
        gone = RequestId(next((n for n in range(self.next_id - 1, 0, -1) if n not in self.live), 10**6))
        calls: dict[str, tuple[Callable[[], Any], type[FrameworkError]]] = {
            "free": (lambda: self.allocator.free(gone), UnknownRequest),
            "extend": (lambda: self.allocator.extend(gone, 1), UnknownRequest),
            "commit": (lambda: self.allocator.commit(gone, as_tokens([0])), UnknownRequest),
            "table": (lambda: self.allocator.table(gone), UnknownRequest),
            "fork": (lambda: self.allocator.fork(gone, self._info(10**6 + 1), 0), UnknownRequest),
        }
        if request is not None:
            row, many = self.live[request], (len(self.tables[request]) + 1) * self.size
            few = as_tokens([0, 1])
            hit = self.allocator.lookup(few, Namespace())
            far = (row.tokens + [0] * many)[:many]
            calls |= {
                "duplicate": (lambda: self.allocator.allocate(self._info(request), few, hit),
                              DuplicateRequest),
                "fork onto itself": (lambda: self.allocator.fork(RequestId(request), self._info(request), 0),
                                     DuplicateRequest),
                "commit too far": (lambda: self.allocator.commit(RequestId(request), as_tokens(far)), InvalidArgument),
                "fork too far": (lambda: self.allocator.fork(RequestId(request), self._info(10**6 + 1), many),
                                 InvalidArgument),
                "extend below 0": (lambda: self.allocator.extend(RequestId(request), -1), InvalidArgument),
            }  # fmt: skip
            if row.committed:
                less = as_tokens(row.tokens[: row.committed - 1])
                calls["commit less"] = (lambda: self.allocator.commit(RequestId(request), less), InvalidArgument)
            if pick < row.committed:
                other = as_tokens([*row.tokens[:pick], 1 - row.tokens[pick], *row.tokens[pick + 1 : row.written]])
                if self.traits.shares:  # else an allocator need not know the tokens
                    calls["commit other tokens"] = (
                        lambda: self.allocator.commit(RequestId(request), other),
                        InvalidArgument,
                    )
                if self.traits.shares_ahead:
                    calls["publish other tokens"] = (
                        lambda: self.allocator.publish(RequestId(request), other),
                        InvalidArgument,
                    )
        if kind in calls:
            method, right = calls[kind]
            error = self.call(f"wrong call: {kind} (request {request}; {gone} is gone)", method, right)
            self.need(isinstance(error, right), f"{kind}: {right.__name__} expected, but it returned", repr(error))
            self.after()

    def _info(self, number: int) -> RequestInfo:
        return RequestInfo(id=RequestId(number), max_total_tokens=8)

    def pick(self, number: int) -> int | None:
        """The request that a history's small number names."""
        return sorted(self.live)[number % len(self.live)] if self.live else None

    def _place(self, request: int) -> int:
        """The number that `pick` takes for a request."""
        return sorted(self.live).index(request)
