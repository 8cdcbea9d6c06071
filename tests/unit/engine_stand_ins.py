"""What SGLang's and vLLM's caches hand to a policy, without SGLang and vLLM."""

import itertools
from abc import ABC, abstractmethod
from typing import Any


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
    """The signatures of `framework.export.vllm.INTERFACE`."""

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
