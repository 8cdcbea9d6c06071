"""The invariants of the C++ allocators: their state is exported and judged by the framework's own audit in Python."""

from __future__ import annotations

from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

from framework.paged.audit import audit
from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool
from framework_native._core import Core

_COLUMNS = ("ref", "depth", "hits", "tenant", "children", "admitted", "last_access", "priority", "next_use")


def faults(
    core: Core, columns: dict[str, Any], num_blocks: int, block_size: int, leaf_only: bool, by_hash: bool
) -> list[str]:
    """Every broken invariant, recomputed from a copy of tables, columns and index. O(num_blocks + tables)."""
    state = core.state()
    pool = BlockPool(num_blocks, block_size)
    for name in _COLUMNS:
        setattr(pool, name, array(getattr(pool, name).typecode, columns[name].tobytes()))
    pool.candidate = bytearray(columns["candidate"].tobytes())
    pool.used, pool.block_hash = state["used"], state["block_hash"]
    wrong = _free_set(pool, state["free"])
    index = _ByHash(pool, state) if by_hash else _by_trie(pool, state)
    tables = {number: _table(*row) for number, row in state["tables"].items()}
    cache = SimpleNamespace(index=index, leaf_only=leaf_only, detached=state["detached"])
    readers = state["readers"]
    promises = SimpleNamespace(owner=state["owners"], readers=lambda owner: readers.get(owner, ()))
    allocator: Any = SimpleNamespace(
        num_blocks=num_blocks,
        block_size=block_size,
        pool=pool,
        cache=cache,
        promises=promises,
        tables=lambda: tables,
    )
    return wrong + audit(allocator)


def _free_set(pool: BlockPool, free: list[int]) -> list[str]:
    pool.restore_free([block for block in dict.fromkeys(free) if 1 <= block <= pool.num_blocks])
    if len(pool.free) == len(free):
        return []
    return [f"I3: the free set names a block twice, or one outside 1 to {pool.num_blocks}: {free}"]


def _table(
    request: Any, blocks: list[int], committed: int, published: int, num_null: int, hashes: list[bytes]
) -> SimpleNamespace:
    return SimpleNamespace(
        request=request,
        blocks=blocks,
        committed=committed,
        published=published,
        num_null=num_null,
        hashes=hashes,
    )


class _ByHash:
    """An index by chained hash, as exported: blocks it finds, hash of each one's parent, children of absent parents."""

    keeps_duplicates = False

    def __init__(self, pool: BlockPool, state: dict[str, Any]) -> None:
        self._pool, self._parents, self._orphans = pool, state["parents"], state["orphans"]
        self._found: dict[Any, int] = {pool.block_hash[block]: block for block in state["found"]}

    def parent(self, block: int) -> int:
        return self._found.get(self._parents[block], 0)

    def audit(self) -> list[str]:
        pool, found = self._pool, self._found
        published = {block: name for block, name in enumerate(pool.block_hash) if block and name is not None}
        faults = [
            f"I20: the index finds block {block}, which the block does not hold"
            for name, block in found.items()
            if name is None or published.get(block) != name
        ]
        faults += [
            f"I20: block {block} is published but the index does not find it"
            for block, name in published.items()
            if found.get(name) != block
        ]
        counts = Counter(self._parents[block] for block in published if self._parents[block] is not None)
        for block, name in published.items():
            expected = counts.pop(name, 0)
            if pool.children[block] != expected:
                faults.append(f"I20: block {block} has {expected} children, its count says {pool.children[block]}")
        if counts != self._orphans:
            faults.append(f"I20: {len(counts)} absent parents have resident children, noted {len(self._orphans)}")
        return faults


def _by_trie(pool: BlockPool, state: dict[str, Any]) -> PrefixIndex:
    index = PrefixIndex(pool, compares_tokens=True)
    index.restore(*(state[name] for name in ("found", "node", "above", "kids", "resident", "block", "hash_of")))
    return index
