"""How the tables of a paged allocator grow, and how their content becomes findable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framework.errors import (
    InvalidArgument,
    PluginError,
)
from framework.paged.table import Table, count_of
from framework.paged.tables import PagedTables
from framework.types import BlockCopy, BlockHash, BlockId, RequestId, TableChange, TokenArray
from framework.types import as_tokens as _as_tokens

_INT32 = np.dtype(np.int32)


class GrowingTables(PagedTables):
    """Room for what a request writes next, and publication of what it has written."""

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        table = self._table(request)
        if type(num_tokens) is not int or num_tokens < 0:
            num_tokens = count_of("num_tokens", num_tokens, 0)
        blocks, size, pool = table.blocks, len(table.blocks), self.pool
        need = -(-num_tokens // self.block_size) - size
        shared = self._unsafe(table) if table.shared else None
        if shared:
            need = max(0, need) + len(shared)
        if need <= 0:
            table.shared = False
            return self._changes.without_copies(size)
        if need > pool.num_blocks - pool.used:
            raise self._out_of_blocks(need, self.cache.available())
        pool.access += 1
        if need == 1 and not shared:
            blocks.append(self.cache.take_one())
            self._version += 1
            return self._changes.without_copies(size)
        fresh = self.cache.take(need)
        self._version += 1
        if not shared:
            blocks.fromlist(fresh)
            return self._changes.without_copies(size)
        return self._copy_on_write(table, shared, fresh)

    def _unsafe(self, table: Table) -> list[int]:
        """Table indexes from the committed length on whose block others can see."""
        ref, hash_of, blocks = self.pool.ref, self.pool.block_hash, table.blocks
        candidates = range(table.committed // self.block_size, len(blocks))
        found = [index for index in candidates if ref[blocks[index]] > 1 or hash_of[blocks[index]] is not None]
        if self.promises.owner:  # what it promised, it writes in place
            found = [index for index in found if self.promises.owner.get(blocks[index]) != table.request.id]
        return found

    def _copy_on_write(self, table: Table, shared: list[int], fresh: list[int]) -> TableChange:
        blocks, own = table.blocks, fresh[: len(shared)]
        copies = tuple(
            BlockCopy(BlockId(blocks[index]), BlockId(block)) for index, block in zip(shared, own, strict=True)
        )
        try:
            self.cache.replace(blocks, shared, own)
        except PluginError:
            self.cache.unref(fresh[len(shared) :])
            raise
        blocks.fromlist(fresh[len(shared) :])
        table.shared = False
        self._copied_blocks += len(copies)
        return TableChange(shared[0], copies)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        table = self._table(request)
        num_tokens, start, size = len(tokens), len(table.blocks), self.block_size
        if not table.committed <= num_tokens <= start * size:
            raise InvalidArgument(
                f"commit of {num_tokens} tokens for request {request}: {table.committed} are committed and there is "
                f"room for {start * size}; extend first"
            )
        if self.promises.owner or self.promises.broken:
            self.promises.keep_all(table, num_tokens)
        if type(tokens) is not np.ndarray or tokens.dtype is not _INT32 or not tokens.flags.c_contiguous:
            tokens = _as_tokens(tokens)
        data, held = tokens.data, table.held  # as buffers: their slices cost less than an array's
        known = len(held) // 4
        if not held.startswith(data[:known]):
            table.refuse(tokens)
        if self.share_prefix and num_tokens // size > table.published and not table.closed:
            start = self._publish(table, num_tokens // size, tokens, data)
        if known < num_tokens:
            held += data[known:]
        table.committed = num_tokens
        return self._changes.without_copies(start)

    def _publish(self, table: Table, full: int, tokens: TokenArray, buffer: memoryview) -> int:
        """Publish the blocks up to `full`, whose tokens are the first of `tokens`, which lie in `buffer`."""
        hashes, first, size = table.hashes, table.published, self.block_size
        known = len(hashes)
        more: list[BlockHash] = []
        if known < full:
            more = self.hasher.blocks(hashes[-1] if hashes else table.root, tokens[known * size : full * size])
        fresh = hashes[first:full] + more if known > first else more
        if self.promises.owner and not self.cache.index.keeps_duplicates:
            full = self.promises.first_of_others(table, [*hashes, *more], tokens, full)
            fresh = fresh[: full - first]
            if full <= first:
                hashes += more
                return len(table.blocks)
        data = buffer[first * size : full * size].tobytes() if self.cache.index.compares_tokens else b""
        self.pool.access += 1
        if self._requests is not None:
            self._requests.used(table.blocks[first:full], table.facts)
        given = table.anchor, table.blocks, first, fresh, data, table.request.priority, table.tenant
        if len(fresh) == 1:
            count, start = self.cache.publish_one(*given)
        else:
            count, start = self.cache.publish(*given, unpublished=not table.shared)
        hashes += more
        table.published = first + count
        if table.shared:
            self.cache.note_shared(table.blocks[first : table.published])
        table.closed = table.published < full
        self._version += 1
        return start

    def promise(self, request: RequestId, num_tokens: int) -> None:
        table = self._table(request)
        if self.share_prefix and self.promises.promise(table, num_tokens):
            self._version += 1

    def learn(self, request: RequestId, tokens: TokenArray) -> bool:
        table, tokens = self._table(request), _as_tokens(tokens)
        if not self.share_prefix:
            return False
        held, data = table.held, tokens.data
        known, count = len(held) // 4, len(table.hashes)
        if not held.startswith(data[:known]):
            table.refuse(tokens)
        fresh = tokens[count * self.block_size : len(tokens) // self.block_size * self.block_size]
        if len(fresh):
            table.hashes += self.hasher.blocks(table.hashes[-1] if count else table.root, fresh)
        if known < len(tokens):
            held += data[known:]
        return True

    def withdraw(self, request: RequestId) -> Sequence[RequestId]:
        table = self._table(request)
        if self.promises.owner:
            self._version += 1
            self.promises.withdraw_all(table)
        return tuple(self.promises.broken)
