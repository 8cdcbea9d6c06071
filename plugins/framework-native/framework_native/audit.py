"""The invariants of the C++ allocators: their state is exported and judged by the framework's own audit in Python."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from framework.paged.audit import audit
from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool
from framework_native._core import Core

_COLUMNS = ("ref", "depth", "hits", "tenant", "children", "admitted", "last_access", "priority", "next_use")


def faults(core: Core, columns: dict[str, Any], num_blocks: int, block_size: int, leaf_only: bool) -> list[str]:
    """Every broken invariant, recomputed from a copy of tables, columns and index. O(num_blocks + tables)."""
    state = core.state()
    pool = BlockPool(num_blocks, block_size)
    for name in _COLUMNS:
        setattr(pool, name, array(getattr(pool, name).typecode, columns[name].tobytes()))
    pool.candidate = bytearray(columns["candidate"].tobytes())
    pool.used, pool.block_hash = state["used"], state["block_hash"]
    wrong = _free_set(pool, state["free"])
    index = PrefixIndex(pool, compares_tokens=True)
    index.restore(*(state[name] for name in ("found", "node", "above", "kids", "resident", "block", "hash_of")))
    tables = {number: _table(*row) for number, row in state["tables"].items()}
    cache = SimpleNamespace(index=index, leaf_only=leaf_only, detached=state["detached"])
    allocator: Any = SimpleNamespace(
        num_blocks=num_blocks,
        block_size=block_size,
        pool=pool,
        cache=cache,
        ahead=set(state["ahead"]),
        tables=tables,
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
        removed=0,  # these drop no tokens
        hashes=hashes,
    )
