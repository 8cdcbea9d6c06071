"""Moves of blocks between free, cached and in use, with the eviction policy kept in step."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from framework.errors import InvalidArgument
from framework.guard.boundary import Guard
from framework.guard.policy import PolicyHost
from framework.interfaces.allocator import CacheEvent
from framework.paged.index import PrefixIndex
from framework.paged.pool import MANY, BlockPool, gather, indices
from framework.types import BlockHash, BlockId

ChooseFree = Callable[[int], Sequence[BlockId]]


class BlockCache:
    """Moves blocks between free, cached and in use, and keeps pool, index and eviction policy in step.

    NOTE. A plugin that raises, or names what is no candidate, leaves all of it half changed: it ends the run.

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
            PluginError: the policy named no candidate, or `choose_free` no free block.
        """
        pool, host = self.pool, self.host
        spare = min(count, len(pool.free))
        fresh = self._choose(spare) if spare else []
        if hits:
            host.pin(self._share(hits, priority))
            host.hit(hits[::-1])
        victims = host.victims(count - spare) if count > spare else []
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
        """`take(1)`, for the call that a decoding request makes: no lists."""
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
        answer: Any = self._choose_free(count)
        chosen: list[Any] = [*answer] if isinstance(answer, Iterable) else []
        sound = all(type(block) is int and 0 < block <= self.pool.num_blocks for block in chosen)
        if len(chosen) != count or not sound or len({*chosen}) != count or not all(map(self.pool.is_free, chosen)):
            guard = Guard("allocator", getattr(self._choose_free, "__self__", self))
            guard.wrong("choose_free", f"must return {count} distinct free blocks", answer)
        return chosen

    def _share(self, hits: Sequence[int], priority: int) -> list[int]:
        """Count a reference and the hit's facts; returns the blocks to pin."""
        pool = self.pool
        pinned: list[int] = []
        idle = _count_users(pool, hits)
        if idle:
            candidate = pool.candidate
            pinned = [block for block in reversed(idle) if candidate[block]]
            pool.used += len(idle)
        if priority > pool.least_priority:
            importance = pool.priority
            for block in hits:
                if importance[block] < priority:
                    importance[block] = priority
        return pinned

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
            InvalidArgument: nothing changed.
        """
        pool, blocks = self.pool, table[first : first + len(hashes)]
        if not unpublished and any(map(pool.block_hash.__getitem__, blocks)):
            self._check_hashes(blocks, hashes)
        parent = table[first - 1] if first else 0
        holders, places = self.index.insert_chain(anchor, parent, hashes, data, blocks)
        new: Sequence[int] = blocks if len(places) == len(blocks) else [blocks[offset] for offset in places]
        pool.describe_all(new, places, first, priority, tenant)
        swaps = (
            [offset for offset, block in enumerate(holders) if block != blocks[offset]]
            if len(new) < len(holders)
            else []
        )
        pinned = [holders[offset] for offset in reversed(swaps) if pool.candidate[holders[offset]]]
        self.host.pin(pinned)
        self.host.admit(new[::-1])
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
        holder = self.index.insert(anchor, parent, block_hash, data, block)
        if holder != block:
            if not holder:
                return 0, len(table)
            if pool.candidate[holder]:
                self.host.pin((holder,))
            self._swap(table, index, holder, priority)
            return 1, index
        pool.block_hash[block] = block_hash
        pool.describe(block, index, priority, tenant)
        self.host.admit((block,))
        if self.listener is not None:
            self.tell("admit", (block,), (block_hash,))
        return 1, len(table)

    def _check_hashes(self, blocks: Sequence[int], hashes: Sequence[BlockHash]) -> None:
        for block, block_hash in zip(blocks, hashes, strict=True):
            if self.pool.block_hash[block] not in (None, block_hash):
                raise InvalidArgument(f"commit into block {block}, which is published with other content; extend first")

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
        """
        idle, hash_of = self.pool.unref(blocks), self.pool.block_hash
        unsure = idle[:unpublished] if len(idle) == len(blocks) else idle
        freed = [block for block in unsure if hash_of[block] is None]
        if freed:
            self.pool.set_free(freed)
            idle = [block for block in idle if hash_of[block] is not None]
        self._make_candidates(self.host.kept(idle, self.give_up, self._stays if self.leaf_only else None))

    def _stays(self, block: int) -> bool:
        return not self.is_leaf(block)

    def give_up(self, block: int) -> None:
        """Make a block free whose content the policy knows to be gone."""
        self.detached.discard(block)
        self._evict((block,))
        self.pool.set_free([block])

    def replace(self, table: array[int], places: Sequence[int], fresh: Sequence[int]) -> None:
        """Put `fresh` blocks, just taken, at these places of a table; the blocks there lose one reference."""
        pool, ref = self.pool, self.pool.ref
        sources = [table[place] for place in places]
        leaving = [block for block in reversed(sources) if ref[block] == 1]
        rejoined = self._rejoin(leaving) if self.detached else []
        offered = [block for block in leaving if not self.leaf_only or self.is_leaf(block)]
        for block in leaving:
            pool.last_access[block] = pool.access
        self.host.pin(rejoined)
        self.host.release(offered)
        for place, source, block in zip(places, sources, fresh, strict=True):
            ref[source] -= 1
            table[place] = block
        pool.used -= len(leaving)

    def _make_candidates(self, blocks: list[int]) -> None:
        rejoined = self._rejoin(blocks) if self.detached else []
        if self.leaf_only:
            blocks = [block for block in blocks if self.is_leaf(block)]
        self.host.pin(rejoined)
        self.host.release(blocks)

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

    def reset(self) -> None:
        """Unpublish everything: cached blocks become free, those in use lose their hash and stay."""
        pool = self.pool
        published = [block for block in range(1, pool.num_blocks + 1) if pool.block_hash[block] is not None]
        published.sort(key=pool.depth.__getitem__, reverse=True)
        cached = [block for block in published if not pool.ref[block]]
        self.unpublish(published)
        pool.set_free(cached)

    def unpublish(self, blocks: Sequence[int]) -> None:
        """Let lookups find these, deepest first, no longer, for another reason than that room was needed."""
        for block in blocks:
            self.host.drop(block)
        self._unpublish(blocks)


def _count_users(pool: BlockPool, hits: Sequence[int]) -> list[int]:
    """Count a reference and a hit for each of these; returns who had no reference."""
    if len(hits) < MANY:
        users = gather(pool.ref, hits)
        for block, others in zip(hits, users, strict=True):
            pool.ref[block] = others + 1
            pool.hits[block] += 1
            pool.last_access[block] = pool.access
        return [block for block, others in zip(hits, users, strict=True) if not others]
    rows, views = indices(hits), pool.views
    counts = views.ref[rows]
    views.ref[rows] = counts + 1
    views.hits[rows] = views.hits[rows] + 1
    views.last_access[rows] = pool.access
    if np.count_nonzero(counts) == len(counts):
        return []
    idle: list[int] = rows[counts == 0].tolist()
    return idle
