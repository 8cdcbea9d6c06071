"""What SGLang's and vLLM's caches hand to a policy, without SGLang and vLLM."""

import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from framework_engines.vllm_connector import TESTED


class Node:
    """The facts of SGLang's TreeNode."""

    ids = itertools.count()

    def __init__(self, parent, key, now, priority=0):
        self.children, self.parent, self.key = {}, parent, key
        self.last_access_time = self.creation_time = now
        self.lock_ref = self.hit_count = 0
        self.hash_value, self.priority, self.id = None, priority, next(self.ids)

    def __lt__(self, other):
        return self.last_access_time < other.last_access_time


class StandIn(ABC):
    """The signatures of `framework_engines.vllm.INTERFACE`."""

    def __init__(self, cache_capacity):
        self.cache_capacity = cache_capacity

    @abstractmethod
    def get(self, key): ...

    @abstractmethod
    def insert(self, key, chunk, req_context): ...

    @abstractmethod
    def remove(self, key): ...

    @abstractmethod
    def touch(self, keys, req_context): ...

    def on_store_miss(self, keys, req_context):
        self.touch(keys, req_context)

    def on_request_access(self, keys, req_context):
        return

    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context):
        for keys in key_groups:
            self.touch(keys, req_context)

    @abstractmethod
    def evict(self, n, protected): ...

    @abstractmethod
    def clear(self): ...

    def mark_evictable(self, key):
        return

    def mark_non_evictable(self, key):
        return


class PoolBlock:
    """The attributes of vLLM's KVCacheBlock that are read here."""

    def __init__(self, block_id: int) -> None:
        self.block_id, self.ref_cnt, self.block_hash, self.block_hash_num_tokens = block_id, 0, None, None
        self.prev_free_block = self.next_free_block = None
        self.is_null = False


class FreeQueue:
    """vLLM's FreeKVCacheBlockQueue, as a list."""

    def __init__(self, blocks: list[PoolBlock]) -> None:
        self.free = list(blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self.free)

    @property
    def fake_free_list_head(self) -> Any:
        head = PoolBlock(-1)
        head.next_free_block = self.free[0]
        return head

    def popleft(self) -> PoolBlock:
        return self.free.pop(0)

    def popleft_n(self, n: int) -> list[PoolBlock]:
        taken, self.free = self.free[:n], self.free[n:]
        return taken

    def remove(self, block: PoolBlock) -> None:
        self.free.remove(block)

    def append_n(self, blocks: list[PoolBlock]) -> None:
        self.free += blocks

    def prepend_n(self, blocks: list[PoolBlock]) -> None:
        self.free = blocks + self.free


class Pool:
    """vLLM's BlockPool: block 0 is null, contents are found by hash, and what is taken is evicted."""

    hash_block_size = 16

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [PoolBlock(number) for number in range(num_blocks + 1)]
        self.num_gpu_blocks, self.cached, self.evicted = num_blocks + 1, {}, []
        self.blocks[0].is_null = True
        self.free_block_queue: Any = FreeQueue(self.blocks[1:])

    def get_new_blocks(self, count: int) -> list[PoolBlock]:
        taken = self.free_block_queue.popleft_n(count)
        for block in taken:
            self._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return taken

    def _maybe_evict_cached_block(self, block: PoolBlock) -> bool:
        if block.block_hash is None:
            return False
        self.evicted.append(block.block_hash)
        self.cached[block.block_hash].remove(block)
        block.block_hash = block.block_hash_num_tokens = None
        return True

    def touch(self, blocks: list[PoolBlock]) -> None:
        for block in blocks:
            if not block.ref_cnt and not block.is_null:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def cache_full_blocks(
        self, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, wide: int = 1, group: bytes = b""
    ) -> None:
        """A block of a group has `wide` times the tokens that a hash has; the group is the end of its name."""
        for place in range(num_cached_blocks, num_full_blocks):
            block, units = blocks[place], wide * (place + 1)
            if not block.is_null:
                block.block_hash, block.block_hash_num_tokens = request.block_hashes[units - 1] + group, 16 * units
                self.cached.setdefault(block.block_hash, []).append(block)

    def free_blocks(self, blocks: list[PoolBlock]) -> None:
        for block in blocks:
            block.ref_cnt -= 1
        idle = [block for block in blocks if not block.ref_cnt]
        self.free_block_queue.prepend_n([block for block in idle if block.block_hash is None])
        self.free_block_queue.append_n([block for block in idle if block.block_hash is not None])

    def evict_blocks(self, block_ids: set[int]) -> None:
        for number in block_ids:
            self._maybe_evict_cached_block(self.blocks[number])

    def reset_prefix_cache(self) -> bool:
        if any(block.ref_cnt for block in self.blocks[1:]):
            return False
        for block in self.blocks:
            block.block_hash = None
        self.cached.clear()
        return True


class Manager:
    """vLLM's KVCacheManager over groups of KV in one Pool; a request is computed at once where no tokens are named.

    Args:
        groups: hashes (of 16 tokens) a block of each, and for a window those that it reads back from the end of a hit;
            None: all. A single group's blocks have the names of hashes, those of several end with the group's number.
    """

    def __init__(self, num_blocks: int, groups: Sequence[tuple[int, int | None]] = ((1, None),)) -> None:
        self.block_pool, self.enable_caching, self.num_kv_cache_groups = Pool(num_blocks), True, len(groups)
        self.groups, self.tables = groups, dict[str, list[list[PoolBlock]]]()
        self.names = [number.to_bytes(4, "big") if len(groups) > 1 else b"" for number in range(len(groups))]
        specs = [
            type("FullAttentionSpec" if back is None else "SlidingWindowSpec", (),
                 {"page_size_bytes": 8, **({} if back is None else {"sliding_window": 16 * back})})()
            for _, back in groups
        ]  # fmt: skip
        self.coordinator = SimpleNamespace(
            single_type_managers=[
                SimpleNamespace(block_size=16 * wide, block_pool=self.block_pool) for wide, _ in groups
            ],
            kv_cache_config=SimpleNamespace(
                kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["a"]) for spec in specs]
            ),
        )  # fmt: skip

    def new_step_starts(self) -> None:
        pass

    def hit(self, request: Any) -> list[PoolBlock]:
        """The first group's blocks of the longest hit."""
        return self._longest(request)[1][0]

    def _longest(self, request: Any) -> tuple[int, list[list[PoolBlock]]]:
        """Hashes of the longest hit, and each group's blocks of it, null blocks before a window."""
        step = max(wide for wide, _ in self.groups)
        lengths = range((request.num_tokens - 1) // 16 // step * step, -1, -step)
        return next((units, found) for units in lengths if (found := self._found(request, units)) is not None)

    def _found(self, request: Any, units: int) -> list[list[PoolBlock]] | None:
        cached, tables = self.block_pool.cached, list[list[PoolBlock]]()
        for (wide, back), suffix in zip(self.groups, self.names, strict=True):
            table = list[PoolBlock]()
            for place in range(units // wide):
                read = back is None or wide * (place + 1) > units - back + 1
                name = request.block_hashes[wide * (place + 1) - 1] + suffix
                if read and not cached.get(name):
                    return None
                table.append(cached[name][0] if read else self.block_pool.blocks[0])
            tables.append(table)
        return tables

    def allocate_slots(
        self, request: Any, num_new_tokens: int = 2**20, num_new_computed_tokens: int = 0, *,
        num_external_computed_tokens: int = 0,
    ) -> Any:  # fmt: skip
        """Hashes that were hit; None where there is no room."""
        pool, tables = self.block_pool, self.tables.get(request.request_id)
        units, found = self._longest(request) if tables is None else (0, tables)
        done = request.num_computed_tokens if tables is not None else 16 * units + num_external_computed_tokens
        end = min(request.num_tokens, done + num_new_tokens)
        needs = [-(-end // (16 * wide)) - len(table) for (wide, _), table in zip(self.groups, found, strict=True)]
        fresh = [] if tables is not None else [block for table in found for block in table]
        idle = sum(not block.ref_cnt and not block.is_null for block in fresh)
        if sum(needs) + idle > pool.free_block_queue.num_free_blocks:
            return None
        if tables is None:
            for table in found:
                pool.touch(table)
        self.tables[request.request_id] = found
        for (wide, _), suffix, table, need in zip(self.groups, self.names, found, needs, strict=True):
            first = len(table) if tables is None else done // (16 * wide)
            table += pool.get_new_blocks(need)
            pool.cache_full_blocks(
                request=request, blocks=table, num_cached_blocks=first, num_full_blocks=end // (16 * wide), wide=wide,
                group=suffix,
            )  # fmt: skip
        request.num_computed_tokens = end
        return units

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=tuple(self.tables.get(request_id, ())))

    def pop_blocks_for_free(self, request: Any) -> list[PoolBlock]:
        return self._popped(request)

    def free(self, request: Any) -> None:
        self.block_pool.free_blocks(self._popped(request))

    def _popped(self, request: Any) -> list[PoolBlock]:
        tables = self.tables.pop(request.request_id)
        return [block for table in tables for block in reversed(table) if not block.is_null]


def pretend_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two modules of vLLM's that `lead` imports."""
    version, utils = ModuleType("vllm.version"), ModuleType("vllm.v1.core.kv_cache_utils")
    version.__version__ = TESTED[-1]  # type: ignore[attr-defined]
    utils.get_block_hash = lambda block_hash: block_hash  # type: ignore[attr-defined]
    for module in (version, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
