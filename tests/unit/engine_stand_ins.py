"""What SGLang's and vLLM's caches hand to a policy, without SGLang and vLLM."""

import itertools
from abc import ABC, abstractmethod


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
