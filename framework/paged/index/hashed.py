"""Index by chained hash, for schemes that do not collide."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from framework.paged.index.base import PrefixIndex
from framework.paged.pool import BlockPool, gather
from framework.types import BlockHash


class HashIndex(PrefixIndex):
    """For collision-resistant schemes: a dict from chained hash to block. Two blocks with one hash are equal.

    A chained hash stands for the whole prefix, so a block whose ancestors went is found again as soon as they are back.
    `_orphans` counts the resident children of contents that are gone; it and the pool's `children` follow from
    `_parents`, and are kept only once somebody has asked for them.
    """

    compares_tokens = False

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self._blocks: dict[BlockHash, int] = {}
        self._parents: list[BlockHash | None] = [None] * (pool.num_blocks + 1)
        self._orphans: dict[BlockHash, int] = {}
        self._counting = False
        pool.count_children, pool.parent_of = self._count, self.parent

    def _count(self, children: array[int]) -> None:
        """Count the children of all contents, and keep the counts from here on."""
        self._counting = True
        for block in self._published():
            above = self._parents[block]
            if above is None:
                continue
            parent = self._blocks.get(above)
            if parent is None:
                self._orphans[above] = self._orphans.get(above, 0) + 1
            else:
                children[parent] += 1

    def _published(self) -> Iterable[int]:
        return self._blocks.values()

    def _is_later(self, block: int, block_hash: BlockHash) -> bool:
        """Whether this published block is not the one that lookups find of its content: never, here."""
        return False

    def find(self, anchor: int, hashes: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        get: Any = self._blocks.get
        return list(iter(map(get, hashes[:limit]).__next__, None))

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        if self._blocks.keys().isdisjoint(hashes):
            return len(hashes)
        return next(at for at, block_hash in enumerate(hashes) if block_hash in self._blocks)

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        holder = self._blocks.setdefault(block_hash, block)
        if holder != block or self._pool.block_hash[block] is not None:
            return holder
        self._parents[block] = self._pool.block_hash[parent] if parent else None
        if self._counting:
            children = self._pool.children
            children[block] = self._orphans.pop(block_hash, 0) if self._orphans else 0
            if parent:
                children[parent] += 1
        return block

    def insert_chain(
        self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        hash_of, parents, orphans = self._pool.block_hash, self._parents, self._orphans
        above = hash_of[parent] if parent else None
        own = list(blocks)
        free = list(map(hash_of.__getitem__, own)).count(None) == len(own)
        holders = list(map(self._blocks.setdefault, hashes, own))
        if free and not orphans and holders == own:
            self._insert_new(parent, above, hashes, own)
            return own, [*range(len(own))]
        new: list[int] = []
        for at, (block_hash, block, holder) in enumerate(zip(hashes, own, holders, strict=True)):
            if holder == block and hash_of[block] is None:
                hash_of[block] = block_hash
                parents[block] = above
                if self._counting:
                    self._pool.children[block] = orphans.pop(block_hash, 0) if orphans else 0
                    if parent:
                        self._pool.children[parent] += 1
                new.append(at)
            parent, above = holder, block_hash
        return holders, new

    def _insert_new(self, parent: int, above: BlockHash | None, hashes: Sequence[BlockHash], blocks: list[int]) -> None:
        """The facts of a chain of contents none of which was there, while no absent parent has children."""
        hash_of, parents = self._pool.block_hash, self._parents
        for block, block_hash in zip(blocks, hashes, strict=True):
            hash_of[block] = block_hash
            parents[block] = above
            above = block_hash
        if self._counting:
            children = self._pool.children
            if parent:
                children[parent] += 1
            for block in blocks:
                children[block] = 1
            children[block] = 0

    def parent(self, block: int) -> int:
        block_hash = self._parents[block]
        return 0 if block_hash is None else self._blocks.get(block_hash, 0)

    def remove(self, block: int) -> None:
        block_hash = self._pool.block_hash[block]
        assert block_hash is not None, f"block {block} is not published"
        del self._blocks[block_hash]
        if not self._counting:
            return
        children = self._pool.children
        if children[block]:
            self._orphans[block_hash] = children[block]
            children[block] = 0
        above = self._parents[block]
        if above is not None:
            self._lost_a_child(above)

    def remove_all(self, blocks: Sequence[int]) -> None:
        hash_of, found = self._pool.block_hash, self._blocks
        gone: Any
        if not self._counting:
            for gone in gather(hash_of, blocks):
                del found[gone]
            for block in blocks:
                hash_of[block] = None
            return
        parents, children, orphans = self._parents, self._pool.children, self._orphans
        above: Any = None  # has lost a child that its count still holds: most often it is the next to go
        for block in blocks:
            gone = hash_of[block]
            hash_of[block] = None
            del found[gone]
            below = children[block]
            if above is not None:
                if above == gone:
                    below -= 1
                else:
                    self._lost_a_child(above)
            if below:
                orphans[gone] = below
            above = parents[block]
        if above is not None:
            self._lost_a_child(above)

    def _lost_a_child(self, block_hash: BlockHash) -> None:
        parent = self._blocks.get(block_hash)
        if parent is not None:
            self._pool.children[parent] -= 1
        elif self._orphans[block_hash] > 1:
            self._orphans[block_hash] -= 1
        else:
            del self._orphans[block_hash]

    def clear(self) -> None:
        self._blocks.clear()
        self._orphans.clear()

    def restore(
        self, blocks: dict[BlockHash, int], parents: list[BlockHash | None], orphans: dict[BlockHash, int]
    ) -> None:
        """Take over an index kept elsewhere: block of each hash, parent of each block, counts of absent parents."""
        self._blocks, self._parents, self._orphans = blocks, parents, orphans

    def audit(self) -> list[str]:
        pool, faults = self._pool, []
        published = {block: found for block, found in enumerate(pool.block_hash) if block and found is not None}
        for block_hash, block in self._blocks.items():
            if published.get(block) != block_hash:
                faults.append(
                    f"I20: the index finds block {block} under {block_hash.hex()}, which the block does not hold"
                )
        for block, block_hash in published.items():
            if self._blocks.get(block_hash) != block and not self._is_later(block, block_hash):
                faults.append(f"I20: block {block} is published but the index does not find it")
        counts: dict[BlockHash, int] = {}
        for block in published:
            above = self._parents[block]
            if above is not None:
                counts[above] = counts.get(above, 0) + 1
        for block, block_hash in published.items():
            expected = counts.pop(block_hash, 0) if self._blocks.get(block_hash) == block else 0
            if pool.children[block] != expected:
                faults.append(f"I20: block {block} has {expected} children, its count says {pool.children[block]}")
        if counts != self._orphans:
            faults.append(f"I20: {len(counts)} absent parents have resident children, noted {len(self._orphans)}")
        return faults
