"""Checks of what allocators answer, and the events of their calls for observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.guard.boundary import Guard, is_count
from framework.guard.facts import Facts, checked_facts
from framework.guard.observer import Observers
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.observer import Call
from framework.types import BlockCopy, Namespace, RequestId, RequestInfo, TableChange, TokenArray

_INT = {int}
_INT32 = np.dtype(np.int32)
_counts_of: Callable[[AllocatorStats], tuple[Any, ...]] = attrgetter(*AllocatorStats.__dataclass_fields__)


class GuardedAllocator(Guard, Allocator):
    """An allocator whose answers are checked; a PluginError names one that answers what cannot be.

    Observers hear of each call that changed something when it has ended, with the cache events that it sent; without
    any, a call pays one comparison for them, and the allocator makes no events. Of a call that raised they hear
    nothing: it changed nothing (OutOfBlocks), or it ends the run.

    NOTE. A table has at least the blocks that its tokens need, and may have more, of which the pool is the only bound:
    an allocator may double what a request has, or reserve all it will ever need. Executors have room for the blocks of
    the longest sequence; what a table has beyond them no token reaches, and `table` leaves it out.

    Args:
        max_table_blocks: blocks of the longest sequence, for which executors have room; None: no bound.
    """

    def __init__(self, allocator: Allocator, max_table_blocks: int | None = None) -> None:
        super().__init__("allocator", allocator)
        self.num_blocks, self.block_size = self._size("num_blocks"), self._size("block_size")
        self.max_request_tokens: int = self.num_blocks * self.block_size
        if allocator.max_request_tokens is not None:
            self.max_request_tokens = self._size("max_request_tokens")
        self.groups, self.ends_steps = tuple(allocator.groups), allocator.ends_steps
        self.group_blocks = tuple(allocator.group_blocks) or (self.num_blocks,) * max(1, len(self.groups))
        self.hits_whole_blocks, self.drops_tokens = allocator.hits_whole_blocks, allocator.drops_tokens  # type: ignore[misc]
        self._max_blocks = 2**31 if max_table_blocks is None else max_table_blocks
        self._usual_blocks = min(self._max_blocks, self.num_blocks)
        self._least_block = 0 if self.groups else 1  # of several groups a table may begin with null blocks
        self._num_null: dict[RequestId, int] = {}  # of requests that `unref_leading` took blocks from
        self._observers: Observers | None = None
        self._num_observed = 0  # tables whose blocks observers hear of
        self._events: list[CacheEvent] = []

    def check(self) -> None:
        self.plugin.check()

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self.plugin.listen(listener)

    def observe(self, observers: Observers | None) -> None:
        """Tell these of every call from here on; None: nobody."""
        self._observers = observers
        self._num_observed = 0 if observers is None else max(1, len(self.groups))
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
            facts["table"] = lambda group=0: self.table(about, group)
        self._observers.heard(Call(name, request, **facts), events)

    def _size(self, name: str) -> int:
        value = getattr(self.plugin, name)
        if type(value) is not int or value < 1:
            self.wrong(name, "must be an int of at least 1", value)
        return int(value)

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        hit: Any = self.plugin.lookup(tokens, namespace, previous)
        if not isinstance(hit, Hit) or not is_count(hit.num_tokens) or hit.num_tokens >= max(len(tokens), 1):
            self.wrong("lookup", f"must return a Hit of fewer than the prompt's {len(tokens)} tokens", hit)
        return hit

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        return bool(self.plugin.fits(request, tokens, hit))

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        self.plugin.allocate(request, tokens, hit, num_tokens)
        if self._observers is not None:
            self._end("allocate", request.id, info=request, tokens=tokens, hit=hit)

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        change: Any = self.plugin.extend(request, num_tokens)
        if self._observers is not None:
            self._end("extend", request, num_tokens=num_tokens)
        if type(change) is TableChange and not change.copies and type(change.start) is int:  # noqa: SIM102
            if 0 <= change.start <= self._max_blocks:
                return change
        return self._checked("extend", change)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        change: Any = self.plugin.commit(request, tokens)
        if self._observers is not None:
            self._end("commit", request, tokens=tokens)
        if type(change) is TableChange and not change.copies and type(change.start) is int:  # noqa: SIM102
            if 0 <= change.start <= self._max_blocks:
                return change
        return self._checked("commit", change)

    def step_end(self, request: RequestInfo, start: int, end: int, hit: Hit | None = None) -> int:
        answer: Any = self.plugin.step_end(request, start, end, hit)
        if not is_count(answer) or not start <= answer <= end:
            self.wrong("step_end", f"must return a count from {start} to {end}", answer)
        return int(answer)

    def steady_tokens(self, request: RequestId) -> int:
        answer: Any = self.plugin.steady_tokens(request)
        if not is_count(answer):
            self.wrong("steady_tokens", "must return a count of tokens", answer)
        return int(answer)

    def publish(self, request: RequestId, tokens: TokenArray) -> None:
        self.plugin.publish(request, tokens)
        if self._observers is not None:
            self._end("publish", request, tokens=tokens)

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        change = self._checked("fork", self.plugin.fork(parent, child, num_tokens))
        if self._observers is not None:
            self._end("fork", parent, info=child, num_tokens=num_tokens)
        if parent in self._num_null:
            self._num_null[child.id] = self._num_null[parent]
        return change

    def _checked(self, hook: str, change: Any) -> TableChange:
        if not isinstance(change, TableChange) or not is_count(change.start):
            self.wrong(hook, "must return a TableChange that starts at a table index", change)
        copies: Any = change.copies
        if not isinstance(copies, (tuple, list)) or not all(map(self._is_copy, copies)):
            rule = f"must copy blocks 1 to {self.group_blocks[0]} with BlockCopy"
            self.wrong(hook, rule, copies)
        return change if change.start <= self._max_blocks else replace(change, start=self._max_blocks)

    def _is_copy(self, copy: Any) -> bool:
        return (
            isinstance(copy, BlockCopy)
            and copy.group in range(len(self.group_blocks))
            and all(
                is_count(block) and 0 < block <= self.group_blocks[copy.group]
                for block in (copy.source, copy.destination)
            )
        )

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        answer: Any = self.plugin.unref_leading(request, num_tokens)
        if self._observers is not None:
            self._end("unref_leading", request, num_tokens=num_tokens)
        if not is_count(answer) or answer * self.block_size > num_tokens:
            rule = f"must return how many of the {num_tokens // self.block_size} leading blocks are unreferenced"
            self.wrong("unref_leading", rule, answer)
        if answer:
            self._num_null[request] = int(answer)
        return int(answer)

    def drop(
        self, request: RequestId, num_tokens: int, dropped: Sequence[int], rewritten: int | None = None
    ) -> TableChange:
        change = self._checked("drop", self.plugin.drop(request, num_tokens, dropped, rewritten))
        if self._observers is not None:
            self._end("drop", request, num_tokens=num_tokens)
        return change

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        tables = [self.table(request, group).copy() for group in range(self._num_observed)]
        self._num_null.pop(request, None)
        self.plugin.free(request, next_use)
        if self._observers is not None:
            self._end("free", request, table=lambda group=0: tables[group])

    def table(
        self, request: RequestId, group: int = 0, *, num_tokens: int = 0, start: int = 0
    ) -> npt.NDArray[np.int32]:
        """The request's blocks, with room for `num_tokens` and no longer than executors have room for.

        Those from `start` on are checked: executors index memory with them.
        """
        table: Any = self.plugin.table(request, group) if group else self.plugin.table(request)
        # `is` first: comparing dtypes costs more than all else here.
        if type(table) is not np.ndarray or (table.dtype is not _INT32 and table.dtype != _INT32) or table.ndim != 1:
            self.wrong("table", "must return (m,) int32 block ids", table)
        count = len(table)
        if count > self._usual_blocks:
            if not self.groups and count - self._num_null.get(request, 0) > self.num_blocks:
                rule = f"must give sequence {request} at most the pool's {self.num_blocks} blocks"
                raise self.fault("table", f"{rule}, gave {count}")
            table = table[: self._max_blocks]
            count = len(table)
        if count < start or count * self.block_size < num_tokens:
            least = max(start, -(-num_tokens // self.block_size))
            rule = f"must give sequence {request} at least {least} blocks of {self.block_size} tokens"
            raise self.fault("table", f"{rule}, gave {count}")
        if self._num_null:  # leading entries that were unreferenced are the null block
            null = self._num_null.get(request, 0)
            if table[start:null].any():
                rule = f"must begin with {null} null blocks, as unref_leading said"
                self.wrong("table", rule, table.tolist())
            start = max(start, null)
        if count - start == 1:  # a decoding row gets one block: min() and max() would cost more than all else
            low = high = table.item(start)
        else:
            low, high = (table[start:].min(), table[start:].max()) if count > start else (1, 1)
        if low < self._least_block or high > self.group_blocks[group]:
            rule = f"must name blocks 1 to {self.group_blocks[group]} for sequence {request}"
            self.wrong("table", rule, table[start:].tolist())
        checked: npt.NDArray[np.int32] = table
        return checked

    def stats(self) -> AllocatorStats:
        stats: Any = self.plugin.stats()
        if type(stats) is not AllocatorStats:
            self.wrong("stats", "must return AllocatorStats", stats)
        free, cached, used = stats.free_blocks, stats.cached_blocks, stats.used_blocks
        if not type(free) is type(cached) is type(used) is type(stats.external_blocks) is int:
            self.wrong("stats", "must return AllocatorStats of ints", stats)
        if free + cached + used != self.num_blocks or free < 0 or cached < 0 or used < 0:
            self.wrong("stats", f"free, cached and used must sum to {self.num_blocks} blocks", stats)
        return stats

    def final_stats(self) -> AllocatorStats:
        """`stats`, with every count checked: what a run's result is made of. A step reads the first few alone."""
        stats = self.stats()
        if {*map(type, _counts_of(stats))} != _INT:
            self.wrong("stats", "must return AllocatorStats of ints", stats)
        return stats

    def advance(self, now: float) -> None:
        self.plugin.advance(now)
        if self._events:
            self._end("advance", None)

    def reset(self, request: RequestId | None = None) -> None:
        self.plugin.reset(request)
        if self._observers is not None:
            self._end("reset", request)

    def facts(self) -> Facts:
        return checked_facts(self, self.plugin.facts())
