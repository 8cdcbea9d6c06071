"""KV events of any allocator, from the cache events that it sends and the calls that caused them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from framework.errors import PluginError
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.allocator import Allocator, CacheEvent, Hit
from framework.kv_events.schema import GPU, BlockRemoved, BlockStored
from framework.kv_events.stream import EventStream
from framework.types import BlockHash, BlockId, RequestId, RequestInfo, TableChange, TokenArray, as_tokens

Method = TypeVar("Method", bound=Callable[..., Any])


def _settled(method: Method) -> Method:
    """The method, which takes a request first, or what is known of one, with its cache events turned into KV events at
    the end of each call.
    """

    def call(self: EventAllocator, request: RequestId | RequestInfo, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, request, *args, **kwargs)
        finally:
            if self._came:
                self._settle(request.id if isinstance(request, RequestInfo) else request)

    return call  # type: ignore[return-value]


class EventAllocator(GuardedAllocator):
    """A GuardedAllocator that says in KV events what `Allocator.listen` reports of blocks.

    A cache event names blocks and their hashes. Tokens, parent and namespace follow from the call during which it came:
    a block is published by a call for the request whose table names it. So every allocator that sends cache events has
    KV events, with nothing added to its contract; a run without them makes a plain GuardedAllocator and pays nothing.

    Blocks that one call publishes one below the other are one BlockStored; those it removes in a row one BlockRemoved.
    """

    def __init__(self, allocator: Allocator, max_table_blocks: int | None, stream: EventStream) -> None:
        super().__init__(allocator, max_table_blocks)
        self._stream = stream
        self._other: Callable[[CacheEvent], Any] | None = None
        self._came: list[CacheEvent] = []
        self._hashes: dict[int, BlockHash] = {}
        self._requests: dict[RequestId, RequestInfo] = {}
        self._tokens: dict[RequestId, bytearray] = {}  # int32, as far as they are known
        super().listen(self._take)

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        """Send every cache event to `listener` as well."""
        self._other = listener

    def _take(self, event: CacheEvent) -> None:
        self._came.append(event)
        if self._other is not None:
            self._other(event)

    @_settled
    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        super().allocate(request, tokens, hit, num_tokens)
        self._requests[request.id], self._tokens[request.id] = request, bytearray(as_tokens(tokens))
        found = [*hit.hashes[: hit.num_tokens // self.block_size]]
        if found and self._stream.report_hits:
            self._store(request.id, found, None, 0)

    extend = _settled(GuardedAllocator.extend)
    withdraw = _settled(GuardedAllocator.withdraw)
    unref_leading = _settled(GuardedAllocator.unref_leading)

    @_settled
    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        try:
            return super().commit(request, tokens)
        finally:
            self._hold(request, tokens)

    def _hold(self, request: RequestId, tokens: TokenArray) -> None:
        data = self._tokens.get(request)
        if data is not None:  # the array is the caller's, who writes on in it
            data += as_tokens(tokens)[len(data) // 4 :].tobytes()

    @_settled
    def promise(self, request: RequestId, tokens: TokenArray) -> None:
        try:
            super().promise(request, tokens)
        finally:
            self._hold(request, tokens)

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        try:
            change = super().fork(parent, child, num_tokens)
            self._requests[child.id] = child
            self._tokens[child.id] = self._tokens.get(parent, bytearray())[: 4 * num_tokens]
            return change
        finally:
            if self._came:
                self._settle(child.id)

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        table: list[int] = []  # a block published by this very call is in the table that ends with it
        try:
            with suppress(PluginError):  # of `table`: the request is freed all the same
                table = self._blocks(request)
            super().free(request, next_use)
        finally:
            if self._came:
                self._settle(request, table)
            self._requests.pop(request, None)
            self._tokens.pop(request, None)

    def reset(self, request: RequestId | None = None) -> None:
        try:
            super().reset(request)
        finally:
            if request is None:
                self._came.clear()
                self._hashes.clear()
                self._stream.cleared()
            elif self._came:
                self._settle(request)

    def _blocks(self, request: RequestId) -> list[int]:
        """The request's table; empty where it has none."""
        if request not in self._requests:
            return []
        blocks: list[int] = super().table(request).tolist()
        return blocks

    def _settle(self, request: RequestId, table: list[int] | None = None) -> None:
        """Turn the cache events of a call for `request` into KV events."""
        came, self._came = self._came, []
        for kind, events in groupby(came, attrgetter("kind")):
            pairs = [pair for event in events for pair in zip(event.blocks, event.hashes, strict=True)]
            if kind == "admit":
                table = self._blocks(request) if table is None else table
                self._stored(request, table, pairs)
            else:
                for block, _ in pairs:
                    self._hashes.pop(block, None)
                self._stream.add(BlockRemoved(block_hashes=[key for _, key in pairs], medium=GPU, group_idx=0))

    def _stored(self, request: RequestId, table: list[int], pairs: Sequence[tuple[BlockId, BlockHash]]) -> None:
        """The blocks that were published for `request`, a BlockStored for each run of neighbours in its table."""
        self._hashes.update(pairs)
        run: list[BlockHash] = []
        first = expected = 0
        for block, key in pairs:
            place = _place(table, block, expected)
            if run and place != expected:
                self._store(request, run, self._above(table, first), first)
                run = []
            if not run:
                first = place
            run.append(key)
            expected = place + 1
        self._store(request, run, self._above(table, first), first)

    def _above(self, table: list[int], place: int) -> BlockHash | None:
        return self._hashes.get(table[place - 1]) if place > 0 else None

    def _store(self, request: RequestId, keys: Sequence[BlockHash], parent: BlockHash | None, first: int) -> None:
        info, step = self._requests.get(request), 4 * self.block_size
        data = self._tokens.get(request, b"") if first >= 0 else b""
        sent = np.frombuffer(bytes(data[first * step : (first + len(keys)) * step]), dtype=np.int32).tolist()
        adapter, salt = (info.namespace.adapter, info.namespace.salt) if info is not None else ("", "")
        self._stream.add(
            BlockStored(
                block_hashes=keys,
                parent_block_hash=parent,
                token_ids=sent,
                block_size=self.block_size,
                medium=GPU,
                lora_name=adapter or None,
                extra_keys=_extra_keys(adapter, salt, first, len(keys)),
                group_idx=0,
                session_id=None if info is None else info.session,
            )
        )


def _extra_keys(adapter: str, salt: str, first: int, count: int) -> list[list[str] | None] | None:
    """What vLLM mixes into each block's hash beside its tokens: the adapter, and the salt where there is no parent."""
    if not adapter and not (salt and first == 0):
        return None
    keys = [[adapter] if adapter else [] for _ in range(count)]
    if salt and first == 0:
        keys[0].append(salt)
    return [one or None for one in keys]


def _place(table: list[int], block: int, expected: int) -> int:
    """Where `block` stands in a table, most often at `expected`; -1 where it does not, as of no published block."""
    if expected < len(table) and table[expected] == block:
        return expected
    try:
        return table.index(block)
    except ValueError:
        return -1
