"""Error boundary around allocators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import DuplicateRequest, FrameworkError, InvariantViolation, OutOfBlocks, PluginError
from framework.guard.boundary import Boundary, contained, is_count
from framework.guard.facts import Facts, checked_facts
from framework.guard.observer import Observers
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.observer import Call
from framework.types import BlockCopy, Namespace, RequestId, RequestInfo, TableChange, TokenArray

_CONTRACT = (OutOfBlocks, InvariantViolation, PluginError)
"""What an engine that keeps its own part can meet. Any other error of the contract is a fault of one of the two."""
_INT = {int}
_INT32 = np.dtype(np.int32)
_counts_of: Callable[[AllocatorStats], tuple[Any, ...]] = attrgetter(*AllocatorStats.__dataclass_fields__)


class GuardedAllocator(Allocator):
    """An allocator whose every failure is an error of the contract or a PluginError, and whose answers are checked.

    An `allocate` or `fork` that failed leaves no table behind, and a `free` that failed is asked once more: what the
    request held would be lost otherwise.

    Observers hear of each call that changes something when it has ended, with the cache events that it sent; without
    any, a call pays one comparison for them, and the allocator makes no events.

    NOTE. A table has at least the blocks that its tokens need, and may have more, of which the pool is the only bound:
    an allocator may double what a request has, or reserve all it will ever need. Executors have room for the blocks of
    the longest sequence; what a table has beyond them no token reaches, and `table` leaves it out.

    Args:
        max_table_blocks: blocks of the longest sequence, for which executors have room; None: no bound.

    Attributes:
        plugin: the allocator itself.
    """

    def __init__(self, allocator: Allocator, max_table_blocks: int | None = None) -> None:
        self.plugin = allocator
        self._boundary = Boundary("allocator", type(allocator), _CONTRACT)
        self.num_blocks, self.block_size = self._size("num_blocks"), self._size("block_size")
        self.max_request_tokens: int = self.num_blocks * self.block_size
        if allocator.max_request_tokens is not None:
            self.max_request_tokens = self._size("max_request_tokens")
        self.num_groups, self.ends_steps = allocator.num_groups, allocator.ends_steps
        self._max_blocks = 2**31 if max_table_blocks is None else max_table_blocks
        self._usual_blocks = min(self._max_blocks, self.num_blocks)
        self._contain = self._boundary.contain
        self._num_null: dict[RequestId, int] = {}  # of requests that `unref_leading` took blocks from
        self._observers: Observers | None = None
        self._events: list[CacheEvent] = []

    check, listen = contained(Allocator.check), contained(Allocator.listen)

    def observe(self, observers: Observers | None) -> None:
        """Tell these of every call from here on; None: nobody."""
        self._observers = observers
        self.listen(None if observers is None else self._events.append)

    def _end(self, name: str, request: RequestId | None, **facts: Any) -> None:
        """Tell the observers, if there are any, of a call that has ended."""
        if self._observers is None or not (self._events or self._observers.follows_calls):
            return
        events: Sequence[CacheEvent] = ()
        if self._events:
            events = self._events[:]
            self._events.clear()
        if "table" not in facts and request is not None:
            about = facts["info"].id if name == "fork" else request
            facts["table"] = lambda: self.table_of(about)
        self._observers.heard(Call(name, request, **facts), events)

    def table_of(self, request: RequestId) -> npt.NDArray[np.int32]:
        """The request's table; empty where it has none, or the allocator cannot say."""
        try:
            return self.table(request)
        except FrameworkError:
            return np.empty(0, dtype=np.int32)

    def _size(self, name: str) -> int:
        try:
            value = getattr(self.plugin, name)
        except BaseException as error:
            self._boundary.contain(name, error)
        if type(value) is not int or value < 1:
            self._boundary.wrong(name, "must be an int of at least 1", value)
        return int(value)

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        hit: Any = self._boundary.call("lookup", self.plugin.lookup, tokens, namespace, previous)
        if not isinstance(hit, Hit) or not is_count(hit.num_tokens) or hit.num_tokens >= max(len(tokens), 1):
            self._boundary.wrong("lookup", f"must return a Hit of fewer than the prompt's {len(tokens)} tokens", hit)
        return hit

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        found: Any = self._boundary.call("fits", self.plugin.fits, request, tokens, hit)
        if type(found) is not bool and not isinstance(found, np.bool_):
            self._boundary.wrong("fits", "must return a bool", found)
        return bool(found)

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        try:
            self.plugin.allocate(request, tokens, hit, num_tokens)
        except BaseException as error:
            self._withdraw(request.id, error)
            self._end("allocate", request.id, info=request, tokens=tokens, hit=hit, failed=True)
            self._contain("allocate", error)
        if self._observers is not None:
            self._end("allocate", request.id, info=request, tokens=tokens, hit=hit)

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        try:
            change: Any = self.plugin.extend(request, num_tokens)
        except BaseException as error:
            self._end("extend", request, num_tokens=num_tokens, failed=True)
            self._contain("extend", error)
        if self._observers is not None:
            self._end("extend", request, num_tokens=num_tokens)
        if type(change) is TableChange and not change.copies and type(change.start) is int:  # noqa: SIM102
            if 0 <= change.start <= self._max_blocks:
                return change
        return self._checked("extend", change)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        try:
            change: Any = self.plugin.commit(request, tokens)
        except BaseException as error:
            self._end("commit", request, tokens=tokens, failed=True)
            self._contain("commit", error)
        if self._observers is not None:
            self._end("commit", request, tokens=tokens)
        if type(change) is TableChange and not change.copies and type(change.start) is int:  # noqa: SIM102
            if 0 <= change.start <= self._max_blocks:
                return change
        return self._checked("commit", change)

    def step_end(self, request: RequestInfo, start: int, end: int, hit: Hit | None = None) -> int:
        found: Any = self._boundary.call("step_end", self.plugin.step_end, request, start, end, hit)
        if not is_count(found) or not start <= found <= end:
            self._boundary.wrong("step_end", f"must return a count from {start} to {end}", found)
        return int(found)

    def promise(self, request: RequestId, tokens: TokenArray) -> None:
        try:
            self.plugin.promise(request, tokens)
        except BaseException as error:
            self._end("promise", request, tokens=tokens, failed=True)
            self._contain("promise", error)
        if self._observers is not None:
            self._end("promise", request, tokens=tokens)

    def withdraw(self, request: RequestId) -> Sequence[RequestId]:
        try:
            found: Any = self.plugin.withdraw(request)
        except BaseException as error:
            self._end("withdraw", request, failed=True)
            self._contain("withdraw", error)
        if self._observers is not None:
            self._end("withdraw", request)
        if not isinstance(found, (tuple, list)) or not all(map(is_count, found)):
            self._boundary.wrong("withdraw", "must return the ids of requests", found)
        return found

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        try:
            change = self._checked("fork", self.plugin.fork(parent, child, num_tokens))
        except BaseException as error:
            self._withdraw(child.id, error)
            self._end("fork", parent, info=child, num_tokens=num_tokens, failed=True)
            self._contain("fork", error)
        if self._observers is not None:
            self._end("fork", parent, info=child, num_tokens=num_tokens)
        if parent in self._num_null:
            self._num_null[child.id] = self._num_null[parent]
        return change

    def _checked(self, hook: str, change: Any) -> TableChange:
        if not isinstance(change, TableChange) or not is_count(change.start):
            self._boundary.wrong(hook, "must return a TableChange that starts at a table index", change)
        copies: Any = change.copies
        if not isinstance(copies, (tuple, list)) or not all(map(self._is_copy, copies)):
            rule = f"must copy blocks 1 to {self.num_blocks} with BlockCopy"
            self._boundary.wrong(hook, rule, copies)
        return change if change.start <= self._max_blocks else replace(change, start=self._max_blocks)

    def _is_copy(self, copy: Any) -> bool:
        return isinstance(copy, BlockCopy) and all(
            is_count(block) and 0 < block <= self.num_blocks for block in (copy.source, copy.destination)
        )

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        try:
            found: Any = self.plugin.unref_leading(request, num_tokens)
        except BaseException as error:
            self._end("unref_leading", request, num_tokens=num_tokens, failed=True)
            self._contain("unref_leading", error)
        if self._observers is not None:
            self._end("unref_leading", request, num_tokens=num_tokens)
        if not is_count(found) or found * self.block_size > num_tokens:
            rule = f"must return how many of the {num_tokens // self.block_size} leading blocks are unreferenced"
            self._boundary.wrong("unref_leading", rule, found)
        if found:
            self._num_null[request] = int(found)
        return int(found)

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        self._num_null.pop(request, None)
        table = None if self._observers is None else self.table_of(request).copy()
        try:
            self.plugin.free(request, next_use)
        except BaseException as error:
            self._withdraw(request, error)
            self._end("free", request, table=lambda: table, failed=True)
            self._contain("free", error)
        if self._observers is not None:
            self._end("free", request, table=lambda: table)

    def _withdraw(self, request: RequestId, error: BaseException) -> None:
        """Free what `request` may hold after `error`. The contract says nothing; a plugin may have failed too late."""
        if isinstance(error, (DuplicateRequest, KeyboardInterrupt)):
            return
        try:
            self.plugin.free(request)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return  # it holds none, or cannot be freed; the first error is the one to report

    def table(
        self, request: RequestId, group: int = 0, *, num_tokens: int = 0, start: int = 0
    ) -> npt.NDArray[np.int32]:
        """The request's blocks, with room for `num_tokens` and no longer than executors have room for.

        Those of the first group from `start` on are checked: executors index memory with them.
        """
        if group:
            further: npt.NDArray[np.int32] = self._boundary.call("table", self.plugin.table, request, group)
            return further[: self._max_blocks]
        try:
            table: Any = self.plugin.table(request)
        except BaseException as error:
            self._contain("table", error)
        # `is` first: comparing dtypes costs more than all else here.
        if type(table) is not np.ndarray or (table.dtype is not _INT32 and table.dtype != _INT32) or table.ndim != 1:
            self._boundary.wrong("table", "must return (m,) int32 block ids", table)
        count = len(table)
        if count > self._usual_blocks:
            if count - self._num_null.get(request, 0) > self.num_blocks:
                rule = f"must give sequence {request} at most the pool's {self.num_blocks} blocks"
                raise self._boundary.fault("table", f"{rule}, gave {count}")
            table = table[: self._max_blocks]
            count = len(table)
        if count < start or count * self.block_size < num_tokens:
            least = max(start, -(-num_tokens // self.block_size))
            rule = f"must give sequence {request} at least {least} blocks of {self.block_size} tokens"
            raise self._boundary.fault("table", f"{rule}, gave {count}")
        if self._num_null:  # leading entries that were unreferenced are the null block
            null = self._num_null.get(request, 0)
            if table[start:null].any():
                rule = f"must begin with {null} null blocks, as unref_leading said"
                self._boundary.wrong("table", rule, table.tolist())
            start = max(start, null)
        if count - start == 1:  # a decoding row gets one block: min() and max() would cost more than all else
            low = high = table.item(start)
        else:
            low, high = (table[start:].min(), table[start:].max()) if count > start else (1, 1)
        if low < 1 or high > self.num_blocks:
            rule = f"must name blocks 1 to {self.num_blocks} for sequence {request}"
            self._boundary.wrong("table", rule, table[start:].tolist())
        found: npt.NDArray[np.int32] = table
        return found

    def stats(self) -> AllocatorStats:
        try:
            stats: Any = self.plugin.stats()
        except BaseException as error:
            self._contain("stats", error)
        if type(stats) is not AllocatorStats:
            self._boundary.wrong("stats", "must return AllocatorStats", stats)
        free, cached, used = stats.free_blocks, stats.cached_blocks, stats.used_blocks
        if not type(free) is type(cached) is type(used) is type(stats.external_blocks) is int:
            self._boundary.wrong("stats", "must return AllocatorStats of ints", stats)
        if free + cached + used != self.num_blocks or free < 0 or cached < 0 or used < 0:
            self._boundary.wrong("stats", f"free, cached and used must sum to {self.num_blocks} blocks", stats)
        return stats

    def final_stats(self) -> AllocatorStats:
        """`stats`, with every count checked: what a run's result is made of. A step reads the first few alone."""
        stats = self.stats()
        if {*map(type, _counts_of(stats))} != _INT:
            self._boundary.wrong("stats", "must return AllocatorStats of ints", stats)
        return stats

    def advance(self, now: float) -> None:
        try:
            self.plugin.advance(now)
        except BaseException as error:
            self._contain("advance", error)
        if self._events:
            self._end("advance", None)

    def reset(self, request: RequestId | None = None) -> None:
        try:
            self.plugin.reset(request)
        except BaseException as error:
            self._end("reset", request, failed=True)
            self._contain("reset", error)
        if self._observers is not None:
            self._end("reset", request)

    def facts(self) -> Facts:
        return checked_facts(self._boundary, self._boundary.call("facts", self.plugin.facts))
