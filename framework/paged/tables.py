"""The tables of a paged allocator: what they hold, how they end, and what is counted of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from framework.errors import (
    DuplicateRequest,
    InvalidArgument,
    InvariantViolation,
    OutOfBlocks,
    UnknownRequest,
)
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent
from framework.paged.cache import BlockCache
from framework.paged.hashing import BlockHasher
from framework.paged.last_requests import LastRequests
from framework.paged.pool import BlockPool
from framework.paged.promises import TablePromises
from framework.paged.table import Table, TableChanges, count_of
from framework.types import RequestId, RequestInfo

_INT32 = np.dtype(np.int32)


class PagedTables(Allocator):
    """What `PagedAllocator` keeps, and the calls that need nothing new: ends, shortening, counts, time."""

    pool: BlockPool
    cache: BlockCache
    hasher: BlockHasher
    promises: TablePromises
    _tables: dict[RequestId, Table]
    _requests: LastRequests | None
    _tenants: dict[str, int]
    _changes: TableChanges
    _version: int
    _hit_tokens: int
    _prompt_tokens: int
    _copied_blocks: int

    share_prefix: ClassVar[bool] = False
    share_forks: ClassVar[Literal["none", "full", "all"]] = "none"

    def _check_new(self, request: RequestInfo) -> None:
        count_of("a request id", request.id, 0)
        if request.id in self._tables:
            raise DuplicateRequest(f"request {request.id} holds a table already; free it first")

    def _tenant(self, tenant: str) -> int:
        return self._tenants.setdefault(tenant, len(self._tenants))

    def _out_of_blocks(self, need: int, have: int, reserve: int = 0) -> OutOfBlocks:
        free = min(len(self.pool.free), have)
        kept = f", {reserve} of them kept by the watermark" if reserve else ""
        return OutOfBlocks(
            f"need {need} blocks, have {free} free + {have - free} evictable of {self.num_blocks}{kept}; "
            "preempt a request or raise cache.num_blocks"
        )

    def _table(self, request: RequestId) -> Table:
        try:
            return self._tables[request]
        except (KeyError, TypeError):
            raise UnknownRequest(
                f"request {request!r} holds no table: never allocated, or freed before; {len(self._tables)} do"
            ) from None

    def _require_kept(self, call: str, table: Table, num_tokens: int) -> None:
        """Refuse to go back to where the block before was unreferenced: nothing could be published below it."""
        if table.num_null and num_tokens < (table.num_null + 1) * self.block_size:
            raise InvalidArgument(
                f"{call} of request {table.request.id} at {num_tokens} tokens: its first "
                f"{table.num_null * self.block_size} were passed to unref_leading; keep a full block after them"
            )

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        table = self._table(request)
        count_of("num_tokens", num_tokens, 0)
        last = table.committed // self.block_size
        if self.share_prefix and not table.closed:
            last = min(last, table.published)
        first, end = table.num_null, min(num_tokens // self.block_size, last - 1)
        if end <= first:
            return first
        dropped, rest = table.blocks[first:end], table.blocks[end]
        table.blocks[first:end] = array("i", bytes(4 * (end - first)))
        table.num_null = end
        self.pool.access += 1
        self._version += 1
        if self._requests is not None:
            self._requests.used(dropped, table.facts)
        self.cache.detach(rest)
        self.cache.unref(dropped[::-1])
        return end

    def discard(self, request: RequestId) -> None:
        table, pool = self._table(request), self.pool
        if self.promises.owner:
            raise InvalidArgument(f"discard of request {request} while blocks are promised; commit or withdraw them")
        gone = {block for block in table.blocks if pool.block_hash[block] is not None}
        above = self.cache.index.parent(min(gone, key=pool.depth.__getitem__)) if gone else 0
        while above:  # what a window has passed
            gone.add(above)
            above = self.cache.index.parent(above)
        for held in self._tables.values():
            first = next((at for at, block in enumerate(held.blocks[: held.published]) if block in gone), None)
            if first is not None:
                held.published, held.closed, held.shared = first, True, True
        blocks = sorted(gone, key=pool.depth.__getitem__, reverse=True)
        cached = [block for block in blocks if not pool.ref[block]]
        self._version += 1
        pool.access += 1
        try:
            self.cache.unpublish(blocks)
        finally:
            pool.set_free(cached)

    def free(self, request: RequestId) -> None:
        table = self._table(request)
        try:
            if self.promises:
                self.promises.end(table)
        finally:
            del self._tables[request]
            self.pool.access += 1
            self._version += 1
            blocks = table.blocks[table.num_null :] if table.num_null else table.blocks
            if self._requests is not None:
                self._requests.used(blocks, table.facts)
            self.cache.unref(blocks[::-1], len(table.blocks) - max(table.published, table.num_null))

    def table(self, request: RequestId) -> npt.NDArray[np.int32]:
        return np.frombuffer(bytearray(self._table(request).blocks), dtype=_INT32)

    def reset(self) -> None:
        self.promises.withdraw_every()
        for table in self._tables.values():
            table.closed = True
            table.published = 0
            table.shared = True
        self._version += 1
        self.pool.access += 1
        self.cache.reset()

    def stats(self) -> AllocatorStats:
        pool = self.pool
        return AllocatorStats(
            num_blocks=self.num_blocks,
            free_blocks=len(pool.free),
            cached_blocks=pool.cached,
            used_blocks=pool.used,
            num_requests=len(self._tables),
            hit_tokens=self._hit_tokens,
            prompt_tokens=self._prompt_tokens,
            evictions=self.cache.evictions,
            copied_blocks=self._copied_blocks,
            collisions=self.cache.index.collisions,
        )

    def facts(self) -> dict[str, str | int | float]:
        return {"cached_blocks": self.pool.cached} if self.share_prefix else {}

    def check(self) -> None:
        from framework.paged.audit import audit

        faults = audit(self)
        if faults:
            raise InvariantViolation(f"{type(self).__name__}: " + "; ".join(faults))

    def tables(self) -> dict[RequestId, Table]:
        """The live tables, for `check` and for reports. Not to be changed."""
        return self._tables

    def advance(self, now: float) -> None:
        if now < self.cache.now:
            raise InvalidArgument(f"time goes forward: asked for {now}, it is {self.cache.now}")
        self.cache.now = now

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self.cache.listener = listener

    def foresee(self, request: RequestId, next_use: Sequence[float]) -> None:
        table = self._table(request)
        for block, when in zip(table.blocks[: table.published], next_use, strict=False):
            if block:
                self.pool.set_next_use((block,), when)
