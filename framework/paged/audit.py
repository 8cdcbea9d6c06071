"""Every invariant of a paged allocator, recomputed from its tables and columns."""

from __future__ import annotations

from collections import Counter
from typing import Any


def audit(allocator: Any) -> list[str]:
    """Every broken invariant, recomputed from the tables and the columns alone. O(num_blocks + tables).

    Args:
        allocator: a PagedAllocator, or what has its `num_blocks`, `block_size`, `pool`, `cache`, `ahead` and
            `tables`: what another language keeps is audited so.
    """
    index = allocator.cache.index.audit()
    return [
        *_tables(allocator),
        *_references(allocator),
        *_states(allocator),
        *_free_set(allocator),
        *_published(allocator),
        *(index or [*_candidates(allocator), *_ancestry(allocator)]),  # a broken index cannot be asked for parents
    ]


def _tables(allocator: Any) -> list[str]:
    faults = []
    ahead: set[int] = set()
    for request, table in allocator.tables.items():
        size, blocks, stored = allocator.block_size, table.blocks, table.committed - table.removed
        if table.request.id != request:
            faults.append(f"I8: the table of request {table.request.id} is filed under {request}")
        num_null = table.num_null
        if any(blocks[:num_null]) or num_null > stored // size:
            faults.append(f"I8: request {request} unreferenced {num_null} leading blocks, its table is {list(blocks)}")
        blocks = blocks[num_null:]
        for block in blocks:
            if not 1 <= block <= allocator.num_blocks:
                faults.append(f"I11: request {request} names block {block}, outside 1 to {allocator.num_blocks}")
        if len(set(blocks)) != len(blocks):
            faults.append(f"I12: request {request} names a block twice: {list(blocks)}")
        if not 0 <= stored <= len(table.blocks) * size:
            faults.append(f"I12: request {request} has {stored} tokens in {len(table.blocks)} blocks of {size}")
        if table.removed and not table.closed:
            faults.append(f"I20: request {request} lost {table.removed} tokens and would publish what it computes")
        ahead.update(table.blocks[stored // size : table.published])
    if ahead != allocator.ahead:
        faults.append(
            f"I21: blocks {sorted(ahead)} are published and not computed, noted are {sorted(allocator.ahead)}"
        )
    return faults


def _references(allocator: Any) -> list[str]:
    counts = Counter(block for table in allocator.tables.values() for block in table.blocks if block)
    faults = []
    for block, ref in enumerate(allocator.pool.ref):
        if ref != counts.get(block, 0):
            faults.append(f"I2: block {block} is in {counts.get(block, 0)} tables, its count says {ref}")
        if not 0 <= ref <= len(allocator.tables):
            faults.append(f"I6: block {block} counts {ref} references from {len(allocator.tables)} requests")
    return faults


def _states(allocator: Any) -> list[str]:
    pool = allocator.pool
    faults = []
    used = cached = 0
    for block in range(1, pool.num_blocks + 1):
        free, in_use, published = pool.is_free(block), pool.ref[block] > 0, pool.block_hash[block] is not None
        used += in_use
        cached += published and not in_use
        if free and (in_use or published):
            faults.append(f"I5: block {block} is free and {'in use' if in_use else 'published'}")
        if not (free or in_use or published):
            faults.append(f"I1: block {block} is lost: not free, not in use and not published")
    if pool.used != used:
        faults.append(f"I1: {used} blocks are in use, the count says {pool.used}")
    if used + cached + len(pool.free) != pool.num_blocks:
        faults.append(f"I1: {len(pool.free)} free + {cached} cached + {used} used blocks of {pool.num_blocks}")
    if pool.ref[0] or pool.block_hash[0] is not None or pool.is_free(0):
        faults.append("I16: the null block is in use, published or free")
    return faults


def _free_set(allocator: Any) -> list[str]:
    pool = allocator.pool
    faults = []
    if len(set(pool.free)) != len(pool.free):
        faults.append("I3: the free set names a block twice")
    for position, block in enumerate(pool.free):
        if not 1 <= block <= pool.num_blocks:
            faults.append(f"I11: the free set names block {block}, outside 1 to {pool.num_blocks}")
        elif pool.slot[block] != position:
            faults.append(f"I3: free block {block} lies at {position}, its slot says {pool.slot[block]}")
    return faults


def _candidates(allocator: Any) -> list[str]:
    pool, faults = allocator.pool, []
    published = [block for block in range(1, pool.num_blocks + 1) if pool.block_hash[block] is not None]
    cached = [block for block in published if not pool.ref[block]]
    inner = {*map(allocator.cache.index.parent, cached)} if allocator.cache.leaf_only else set()
    for block in range(pool.num_blocks + 1):
        expected = pool.ref[block] == 0 and pool.block_hash[block] is not None and block not in inner
        if bool(pool.candidate[block]) != expected:
            state = "a candidate" if pool.candidate[block] else "no candidate"
            faults.append(
                f"I5: block {block} is {state} with {pool.ref[block]} references, "
                f"{'unpublished' if pool.block_hash[block] is None else 'published'}, {pool.children[block]} children"
            )
    return faults


def _published(allocator: Any) -> list[str]:
    pool, faults = allocator.pool, []
    for request, table in allocator.tables.items():
        for index, block in enumerate(table.blocks[: table.published]):
            if not 1 <= block <= pool.num_blocks:
                continue
            if pool.block_hash[block] is None:
                faults.append(f"I20: request {request} published its block {index} ({block}), which has no hash")
            elif pool.block_hash[block] != table.hashes[index]:
                faults.append(f"I22: block {block} of request {request} has the hash of other content")
            elif pool.depth[block] != index:
                faults.append(f"I22: block {block} of request {request} is its {index}th, its depth says otherwise")
    return faults


def _ancestry(allocator: Any) -> list[str]:
    pool, cache, faults = allocator.pool, allocator.cache, list[str]()
    detached = cache.detached
    if cache.index.keeps_duplicates:  # a request's own copy may lie below a block that it does not use
        return faults
    for block in range(1, pool.num_blocks + 1):
        parent = cache.index.parent(block) if pool.block_hash[block] is not None else 0
        if parent and pool.ref[block] and not pool.ref[parent] and block not in detached:
            faults.append(f"I28: block {block} is in use below block {parent}, which is not, and is not detached")
    for block in detached:
        if not pool.ref[block] or pool.block_hash[block] is None:
            faults.append(f"I28: block {block} is detached, but not both in use and published")
    return faults
