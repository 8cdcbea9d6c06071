"""Moves of blocks between free, cached and in use, with the eviction policy kept in step."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from framework.errors import InvalidArgument, PluginError
from framework.guard.boundary import Boundary
from framework.guard.policy import PolicyHost
from framework.interfaces.allocator import CacheEvent
from framework.paged.index import PrefixIndex
from framework.paged.pool import MANY, BlockPool, gather, indices
from framework.types import BlockHash, BlockId

ChooseFree = Callable[[int], Sequence[BlockId]]


class BlockCache:
    """Moves blocks between free, cached and in use, and keeps pool, index and eviction policy in step.

    Every method does the calls into plugins first, and undoes those before it if one of them fails, so that a
    PluginError leaves pool and index as they were.

    NOTE. A block in use mostly has all blocks above it in use: whoever names it names them. Not so where forks share a
    block before it is published and one of them meets an equal block above that was published meanwhile: it uses that
    one, the other fork keeps its own. Such blocks are `detached` while in use; they do not keep the block above from
    being evicted, by `leaf_only` neither, since the fork that uses them does not. A request whose window has passed a
    block does without it as well: the first block that it keeps is detached from then on.

    Args:
        choose_free: which free blocks to hand out; None takes the latest freed, without asking.
        leaf_only: a cached block is a candidate only when no cached block is published below it.

    Attributes:
        detached: blocks published while forks shared them, or below unreferenced ones, as long as they are in use.
    """

    def __init__(
        self,
        pool: BlockPool,
        index: PrefixIndex,
        host: PolicyHost,
        leaf_only: bool,
        choose_free: ChooseFree | None,
    ) -> None:
        self.pool = pool
        self.index = index
        self.host = host
        self.leaf_only = leaf_only
        if leaf_only:
            host.tree = self
        self.evictions = 0
        self.detached: set[int] = set()
        self.listener: Callable[[CacheEvent], Any] | None = None
        self._choose_free = choose_free
        self._chooser = Boundary("allocator", type(getattr(choose_free, "__self__", self)), (PluginError,))

    def available(self, hits: Sequence[int] = ()) -> int:
        """Blocks that `take` can hand out beside these hits. O(hits)."""
        pool = self.pool
        if len(hits) < 4 * MANY:
            return pool.num_blocks - pool.used - (gather(pool.ref, hits).count(0) if hits else 0)
        users = pool.views.ref[indices(hits)]
        return pool.num_blocks - pool.used - len(users) + int(np.count_nonzero(users))

    def take(self, count: int, hits: Sequence[int] = (), priority: int = 0) -> list[int]:
        """Share `hits` (shallowest first) and hand out `count` other blocks, each with one reference.

        Free blocks go first, then the policy's victims. The caller has checked `available(hits) >= count`.

        Raises:
            PluginError: the policy or `choose_free` broke a rule; nothing changed.
        """
        pool, host = self.pool, self.host
        spare = min(count, len(pool.free))
        fresh = self._choose(spare) if spare else []
        if hits:
            pinned, accesses, priorities = self._share(hits, priority)
        try:
            if hits:
                host.pin(pinned)
                host.hit(hits[::-1])
            victims = host.victims(count - spare) if count > spare else []
        except PluginError:
            if hits:
                self._unshare(hits, pinned, accesses, priorities)
            raise
        if not spare:
            pass
        elif self._choose_free is None:
            del pool.free[len(pool.free) - spare :]
        else:
            pool.take_free(fresh)
        if victims:
            self._evict(victims)
            fresh += victims
        ref = pool.ref
        for block in fresh:
            ref[block] = 1
        pool.used += count
        return fresh

    def take_one(self) -> int:
        """`take(1)`, for the call that a decoding request makes: no lists.

        Raises:
            PluginError: as `take`; nothing changed.
        """
        if self._choose_free is not None:
            return self.take(1)[0]
        pool = self.pool
        if pool.free:
            block = pool.free.pop()
        else:
            [block] = self.host.victims(1)
            self._evict((block,))
        pool.ref[block] = 1
        pool.used += 1
        return block

    def _choose(self, count: int) -> list[int]:
        free = self.pool.free
        if self._choose_free is None or not count:
            return free[: -count - 1 : -1].tolist()
        try:
            chosen: list[Any] = list(self._choose_free(count))
        except BaseException as error:
            self._chooser.contain("choose_free", error, f" when asked for {count} of {len(free)} free blocks")
        sound = all(type(block) is int and 0 < block <= self.pool.num_blocks for block in chosen)
        if len(chosen) != count or not sound or len({*chosen}) != count or not all(map(self.pool.is_free, chosen)):
            self._chooser.wrong("choose_free", f"must return {count} distinct free blocks", chosen)
        return chosen

    def _share(self, hits: Sequence[int], priority: int) -> tuple[list[int], Iterable[int], list[tuple[int, int]]]:
        """Count a reference and the hit's facts; returns the blocks to pin, and what is needed to undo it."""
        pool = self.pool
        priorities: list[tuple[int, int]] = []
        pinned: list[int] = []
        accesses, idle = _count_users(pool, hits)
        if idle:
            candidate = pool.candidate
            pinned = [block for block in reversed(idle) if candidate[block]]
            pool.used += len(idle)
        if priority > pool.least_priority:
            importance = pool.priority
            for block in hits:
                if importance[block] < priority:
                    priorities.append((block, importance[block]))
                    importance[block] = priority
        return pinned, accesses, priorities

    def _unshare(
        self, hits: Sequence[int], pinned: list[int], accesses: Iterable[int], priorities: list[tuple[int, int]]
    ) -> None:
        pool = self.pool
        for block, access in zip(hits, accesses, strict=True):
            pool.ref[block] -= 1
            pool.used -= not pool.ref[block]
            pool.hits[block] -= 1
            pool.last_access[block] = access
        for block, priority in priorities:
            pool.priority[block] = priority
        self.host.unpin(pinned)

    def _evict(self, blocks: Sequence[int]) -> None:
        """These are evicted; the policy knows already."""
        if self.listener is None and not self.detached:
            self.index.remove(blocks)
        else:
            self._unpublish(blocks)
        self.evictions += len(blocks)

    def _unpublish(self, blocks: Sequence[int]) -> None:
        if self.listener is not None:
            hashes = [*map(self.pool.block_hash.__getitem__, blocks)]
            assert None not in hashes, f"of {blocks} not all are published: {hashes}"
            self.tell("evict", blocks, hashes)
        self.detached.difference_update(blocks)
        self.index.remove(blocks)

    def tell(self, kind: str, blocks: Sequence[Any], hashes: Sequence[Any]) -> None:
        """Send an event of these blocks to the listener, where there is one."""
        if self.listener is not None and blocks:
            self.listener(CacheEvent(kind, [*blocks], [*hashes]))

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
        pool, blocks = self.pool, table[first : first + len(hashes)]
        if not unpublished and any(map(pool.block_hash.__getitem__, blocks)):
            self._check_hashes(blocks, hashes)
        parent = table[first - 1] if first else 0
        anchor = anchor if parent or not first else 0  # below a block that was unreferenced
        holders, places = self.index.insert_chain(anchor, parent, hashes, data, blocks)
        new: Sequence[int] = blocks if len(places) == len(blocks) else [blocks[offset] for offset in places]
        pool.describe_all(new, places, first, priority, tenant)
        swaps = (
            [offset for offset, block in enumerate(holders) if block != blocks[offset]]
            if len(new) < len(holders)
            else []
        )
        pinned = [holders[offset] for offset in reversed(swaps) if pool.candidate[holders[offset]]]
        try:
            self.host.pin(pinned)
            self.host.admit(new[::-1])
        except PluginError:
            self._undo_publication(new, pinned)
            raise
        if self.listener is not None:  # else nobody needs the names
            self.tell("admit", new, [hashes[offset] for offset in places])
        for offset in swaps:
            self._swap(table, first + offset, holders[offset], priority)
        return len(holders), first + swaps[0] if swaps else len(table)

    def publish_one(
        self,
        anchor: int,
        table: array[int],
        index: int,
        hashes: Sequence[BlockHash],
        data: bytes,
        priority: int,
        tenant: int,
    ) -> tuple[int, int]:
        """`publish` of one content, of table[index]: what a decoding request does when a block fills."""
        block, block_hash, pool = table[index], hashes[0], self.pool
        if pool.block_hash[block] is not None:
            return self.publish(anchor, table, index, hashes, data, priority, tenant)
        parent = table[index - 1] if index else 0
        holder = self.index.insert(anchor if parent or not index else 0, parent, block_hash, data, block)
        if holder != block:
            if not holder:
                return 0, len(table)
            self._use_holder(table, index, holder, priority)
            return 1, index
        pool.block_hash[block] = block_hash
        pool.describe(block, index, priority, tenant)
        try:
            self.host.admit((block,))
        except PluginError:
            self._undo_publication((block,), ())
            raise
        if self.listener is not None:
            self.tell("admit", (block,), (block_hash,))
        return 1, len(table)

    def _use_holder(self, table: array[int], index: int, holder: int, priority: int) -> None:
        if self.pool.candidate[holder]:
            try:
                self.host.pin((holder,))
            except PluginError:
                self._undo_publication((), (holder,))
                raise
        self._swap(table, index, holder, priority)

    def _check_hashes(self, blocks: Sequence[int], hashes: Sequence[BlockHash]) -> None:
        for block, block_hash in zip(blocks, hashes, strict=True):
            if self.pool.block_hash[block] not in (None, block_hash):
                raise InvalidArgument(f"commit into block {block}, which is published with other content; extend first")

    def _undo_publication(self, new: Sequence[int], pinned: Sequence[int]) -> None:
        self.index.remove(new[::-1])
        self.host.unpin(pinned)

    def _swap(self, table: array[int], index: int, block: int, priority: int) -> None:
        """Let the table use `block`, which holds the same content, in place of its own."""
        pool, own_block = self.pool, table[index]
        table[index] = block
        if not pool.ref[block]:
            pool.used += 1
        pool.ref[block] += 1
        pool.last_access[block] = pool.access
        if priority > pool.least_priority and priority > pool.priority[block]:
            pool.priority[block] = priority
        pool.ref[own_block] -= 1
        if not pool.ref[own_block]:
            pool.used -= 1
            pool.set_free([own_block])

    def unref(self, blocks: Sequence[int], unpublished: int | None = None) -> None:
        """Give back one reference to each of these, deepest first. Who has none left is cached or free.

        All after the first `unpublished` are known to be published; None: nothing is known.

        Raises:
            PluginError: the policy failed. The references are gone all the same, and so is the content of the blocks
                that the policy would not take: they are free.
        """
        idle, hash_of = self.pool.unref(blocks), self.pool.block_hash
        unsure = idle[:unpublished] if len(idle) == len(blocks) else idle
        freed = [block for block in unsure if hash_of[block] is None]
        if freed:
            self.pool.set_free(freed)
            idle = [block for block in idle if hash_of[block] is not None]
        try:
            kept = self.host.kept(idle, self.give_up, self._stays if self.leaf_only else None)
        except PluginError:
            self._free_refused([block for block in idle if hash_of[block] is not None])
            raise
        self._make_candidates(kept)

    def _stays(self, block: int) -> bool:
        return not self.is_leaf(block)

    def give_up(self, block: int) -> None:
        """Make a block free whose content the policy knows to be gone."""
        self.detached.discard(block)
        self._evict((block,))
        self.pool.set_free([block])

    def replace(self, table: array[int], places: Sequence[int], fresh: Sequence[int]) -> None:
        """Put `fresh` blocks, just taken, at these places of a table; the blocks there lose one reference.

        Raises:
            PluginError: the policy would not take a block that is unreferenced now. The table is as before, and the
                fresh blocks are free.
        """
        pool, ref = self.pool, self.pool.ref
        sources = [table[place] for place in places]
        leaving = [block for block in reversed(sources) if ref[block] == 1]
        detached = self.detached.intersection(leaving)
        rejoined = self._rejoin(leaving) if detached else []
        offered = [block for block in leaving if not self.leaf_only or self.is_leaf(block)]
        for block in leaving:
            pool.last_access[block] = pool.access
        try:
            self.host.pin(rejoined)
            self.host.release(offered)
        except PluginError:
            self.host.unpin(rejoined)
            self.detached |= detached
            self.unref(fresh)
            raise
        for place, source, block in zip(places, sources, fresh, strict=True):
            ref[source] -= 1
            table[place] = block
        pool.used -= len(leaving)

    def _make_candidates(self, blocks: list[int]) -> None:
        rejoined = self._rejoin(blocks) if self.detached else []
        if self.leaf_only:
            blocks = [block for block in blocks if self.is_leaf(block)]
        try:
            self.host.pin(rejoined)
            self.host.release(blocks)
        except PluginError:
            self._free_refused(blocks)
            raise

    def leave(self, block: int) -> int:
        above = self.index.parent(block)
        if not above:
            return 0
        self.pool.children[above] -= 1
        return above if not self.pool.ref[above] and self.is_leaf(above) else 0

    def stay(self, block: int) -> None:
        above = self.index.parent(block)
        self.pool.children[above] += above > 0

    def is_leaf(self, block: int) -> bool:
        """Whether no block published below this one, which is not in use, is cached."""
        below = self.pool.children[block]
        return not below or below == sum(self.index.parent(other) == block for other in self.detached)

    def note_shared(self, blocks: Sequence[int]) -> None:
        """These were just published; those that other tables name too may have another block above them there."""
        self.detached.update(block for block in blocks if self.pool.ref[block] > 1)

    def detach(self, block: int) -> None:
        """This block, which is in use, does without those above it, which are about to be unreferenced."""
        if self.pool.block_hash[block] is not None:
            self.detached.add(block)

    def _rejoin(self, blocks: Sequence[int]) -> list[int]:
        """These are not in use any more; the candidates above those that were detached, which are none from here on."""
        gone = self.detached.intersection(blocks)
        self.detached -= gone
        above: dict[int, None] = {}
        for parent in map(self.index.parent, sorted(gone)) if self.leaf_only else ():
            if parent and self.pool.candidate[parent]:
                above[parent] = None
        return list(above)

    def _free_refused(self, blocks: list[int]) -> None:
        """Make candidates free that no policy keeps."""
        pool = self.pool
        above = dict.fromkeys(map(self.index.parent, blocks)) if self.leaf_only else {}
        self._evict(blocks)
        pool.set_free(blocks)
        offered = [block for block in above if block and pool.block_hash[block] is not None and not pool.ref[block]]
        offered = [block for block in offered if not pool.candidate[block] and self.is_leaf(block)]
        if offered:
            with suppress(PluginError):
                self._make_candidates(offered)

    def reset(self) -> None:
        """Unpublish everything: cached blocks become free, those in use lose their hash and stay.

        Raises:
            PluginError: the policy failed. All is unpublished nonetheless.
        """
        pool = self.pool
        published = [block for block in range(1, pool.num_blocks + 1) if pool.block_hash[block] is not None]
        published.sort(key=pool.depth.__getitem__, reverse=True)
        cached = [block for block in published if not pool.ref[block]]
        try:
            self.unpublish(published)
        finally:
            pool.set_free(cached)

    def unpublish(self, blocks: Sequence[int]) -> None:
        """Let lookups find these, deepest first, no longer, for another reason than that room was needed.

        Raises:
            PluginError: the policy failed. They are unpublished nonetheless.
        """
        failure: PluginError | None = None
        for block in blocks:
            try:
                self.host.drop(block)
            except PluginError as error:
                failure = failure or error
        self._unpublish(blocks)
        if failure is not None:
            raise failure


def _count_users(pool: BlockPool, hits: Sequence[int]) -> tuple[Iterable[int], list[int]]:
    """Count a reference and a hit for each of these; returns their last accesses before, and who had no reference."""
    if len(hits) < MANY:
        users, accesses = gather(pool.ref, hits), gather(pool.last_access, hits)
        for block, others in zip(hits, users, strict=True):
            pool.ref[block] = others + 1
            pool.hits[block] += 1
            pool.last_access[block] = pool.access
        return accesses, [block for block, others in zip(hits, users, strict=True) if not others]
    rows, views = indices(hits), pool.views
    counts, before = views.ref[rows], views.last_access[rows]
    views.ref[rows] = counts + 1
    views.hits[rows] = views.hits[rows] + 1
    views.last_access[rows] = pool.access
    if np.count_nonzero(counts) == len(counts):
        return before, []
    idle: list[int] = rows[counts == 0].tolist()
    return before, idle
