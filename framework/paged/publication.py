"""How the content of a table's blocks becomes findable, and equal contents share one block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from framework.errors import InvalidArgument, PluginError
from framework.types import BlockHash

if TYPE_CHECKING:
    from framework.paged.cache import BlockCache


class Publication:
    """Publishes blocks of a BlockCache: index first, then the policy, whose failure undoes it."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache

    def publish(
        self,
        anchor: int,
        table: array[int],
        first: int,
        hashes: Sequence[BlockHash],
        data: bytes,
        priority: int,
        tenant: int,
        *,
        unpublished: bool = False,
    ) -> tuple[int, int]:
        """Make the contents of table[first : first + len(hashes)] findable. `data` are their tokens as int32 bytes.

        An entry whose content another block holds already is swapped for that block. Stops before a content whose
        hash is also that of another one. `unpublished`: these blocks are known to be.

        Returns:
            How many contents are published, and the first table index that was swapped (len(table) if none).

        Raises:
            PluginError, InvalidArgument: nothing changed.
        """
        pool, blocks = self._cache.pool, table[first : first + len(hashes)]
        if not unpublished and any(map(pool.block_hash.__getitem__, blocks)):
            self._check_hashes(blocks, hashes)
        parent = table[first - 1] if first else 0
        holders, places = self._cache.index.insert_chain(anchor, parent, hashes, data, blocks)
        new: Sequence[int] = blocks if len(places) == len(blocks) else [blocks[at] for at in places]
        pool.describe_all(new, places, first, priority, tenant)
        swaps = [at for at, block in enumerate(holders) if block != blocks[at]] if len(new) < len(holders) else []
        pinned = [holders[at] for at in reversed(swaps) if pool.candidate[holders[at]]]
        try:
            if pinned:
                self._cache.policy.pin(pinned, self._cache.now)
            if new and self._cache.policy.wants_admit:
                self._cache.policy.admit(new[::-1], self._cache.now)
        except PluginError:
            self._undo(new, pinned)
            raise
        if self._cache.listener is not None:  # else nobody needs the names
            self._cache.tell("admit", new, [hashes[at] for at in places])
        for at in swaps:
            self._swap(table, first + at, holders[at], priority)
        return len(holders), first + swaps[0] if swaps else len(table)

    def publish_one(
        self,
        anchor: int,
        table: array[int],
        at: int,
        hashes: Sequence[BlockHash],
        data: bytes,
        priority: int,
        tenant: int,
    ) -> tuple[int, int]:
        """`publish` of one content, of table[at]: what a decoding request does when a block fills."""
        cache, block, block_hash = self._cache, table[at], hashes[0]
        pool = cache.pool
        if pool.block_hash[block] is not None:
            return self.publish(anchor, table, at, hashes, data, priority, tenant)
        holder = cache.index.insert(anchor, table[at - 1] if at else 0, block_hash, data, block)
        if holder != block:
            if not holder:
                return 0, len(table)
            self._use_holder(table, at, holder, priority)
            return 1, at
        pool.block_hash[block] = block_hash
        pool.describe(block, at, priority, tenant)
        if cache.policy.wants_admit:
            try:
                cache.policy.admit((block,), cache.now)
            except PluginError:
                self._undo((block,), ())
                raise
        if cache.listener is not None:
            cache.tell("admit", (block,), (block_hash,))
        return 1, len(table)

    def _use_holder(self, table: array[int], at: int, holder: int, priority: int) -> None:
        if self._cache.pool.candidate[holder]:
            try:
                self._cache.policy.pin((holder,), self._cache.now)
            except PluginError:
                self._undo((), (holder,))
                raise
        self._swap(table, at, holder, priority)

    def _check_hashes(self, blocks: Sequence[int], hashes: Sequence[BlockHash]) -> None:
        for block, block_hash in zip(blocks, hashes, strict=True):
            if self._cache.pool.block_hash[block] not in (None, block_hash):
                raise InvalidArgument(f"commit into block {block}, which is published with other content; extend first")

    def _undo(self, new: Sequence[int], pinned: Sequence[int]) -> None:
        """Undo a publication that the policy did not take."""
        self._cache.index.remove(new[::-1])
        if pinned:
            with suppress(PluginError):  # the first error is the one to report
                self._cache.policy.release(pinned, self._cache.now)

    def _swap(self, table: array[int], index: int, block: int, priority: int) -> None:
        """Let the table use `block`, which holds the same content, in place of its own."""
        pool, own = self._cache.pool, table[index]
        table[index] = block
        if not pool.ref[block]:
            pool.used += 1
            pool.candidate[block] = 0
        pool.ref[block] += 1
        pool.last_access[block] = pool.access
        if priority > pool.least_priority and priority > pool.priority[block]:
            pool.varied = True
            pool.priority[block] = priority
        pool.ref[own] -= 1
        if not pool.ref[own]:
            pool.used -= 1
            pool.set_free([own])
