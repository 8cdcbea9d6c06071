"""A stream of requests through SGLang's own RadixCache, one at a time, called as its scheduler does."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from experiments.fidelity.streams import Outcome, Talk
from framework.types import ROOT_NAMESPACE, BlockHash
from framework_builtin.hash.sha256 import Sha256


class Radix:
    """SGLang's radix tree over a pool of `num_pages`, which is counted here: its own allocators need a GPU's kernels.

    Args:
        modules: SGLang's `radix_cache` and `base_prefix_cache`.
        strategy: orders evictions; None for SGLang's own LRU.
        prepare: takes the tree before its first request.
    """

    def __init__(
        self, modules: Mapping[str, Any], num_pages: int, page_size: int, strategy: Any = None, prepare: Any = None
    ) -> None:
        self.radix, self.base, self.page = modules["radix_cache"], modules["base_prefix_cache"], page_size
        self.free, self.outcome, self._scheme = num_pages, Outcome(), Sha256()
        self._root = self._scheme.root(ROOT_NAMESPACE, page_size)
        pool = SimpleNamespace(device="cpu", free_segment=self._freed)
        self.tree = self.radix.RadixCache.create_simulated(mock_allocator=pool, page_size=page_size)
        self.tree.update_eviction_metrics = lambda *_: None
        if strategy is not None:
            self.tree.eviction_strategy = strategy
        if prepare is not None:
            prepare(self.tree)
        forget = self.tree._delete_leaf

        def noted(node: Any) -> None:
            self.outcome.evicted += reversed(self._names(node))  # deepest first
            forget(node)

        self.tree._delete_leaf = noted

    def request(self, number: int, request: Talk) -> None:
        """Match, lock, make room, insert the prompt, decode, insert the answer, unlock."""
        tree, page, length = self.tree, self.page, len(request.prompt)
        match = tree.match_prefix(self.base.MatchPrefixParams(key=self._key(request.prompt[:-1])))
        hit, node = int(match.device_prefix_len), match.last_device_node
        tree.inc_lock_ref(node)
        self._take(-(-length // page) - hit // page)
        node = self._insert(request.prompt, hit, node)
        for position in range(length, length + len(request.output) - 1):
            if position % page == 0:
                self._take(1)
        whole = np.concatenate([request.prompt, request.output])[:-1]
        node = self._insert(whole, length // page * page, node)
        self.free += -(-len(whole) // page) - len(whole) // page
        tree.dec_lock_ref(node)
        self.outcome.hits[number] = hit

    def _insert(self, tokens: Any, num_locked: int, locked: Any) -> Any:
        """Publish these tokens, of which the tree has `num_locked` for the request; moves the lock to their end."""
        tree, key = self.tree, self._key(tokens)
        found = tree.insert(self.base.InsertParams(key=key))
        self.free += max(0, int(found.prefix_len) - num_locked) // self.page
        match = tree.match_prefix(self.base.MatchPrefixParams(key=key))
        tree.dec_lock_ref(locked)
        tree.inc_lock_ref(match.last_device_node)
        return match.last_device_node

    def _take(self, pages: int) -> None:
        if pages > self.free:
            self.tree.evict(self.base.EvictParams(num_tokens=(pages - self.free) * self.page))
        self.free -= pages
        assert self.free >= 0, "the pool is too small for a request"

    def _freed(self, value: Any, start_pos: int) -> None:
        self.free += len(value) // self.page

    def _key(self, tokens: Any) -> Any:
        return self.radix.RadixKey(array("q", [int(token) for token in tokens]))

    def _names(self, node: Any) -> list[BlockHash]:
        """The chained hashes of a node's pages."""
        if node.parent is None:
            return [self._root]
        if getattr(node, "names", None) is None or len(node.names) != len(node.key) // self.page:
            tokens = np.array(node.key.token_ids, dtype=np.int32)
            node.names = self._scheme.blocks(self._names(node.parent)[-1], tokens, self.page)
        return list(node.names)


def run(talks: Sequence[Talk], radix: Radix) -> Outcome:
    """All requests, in order; `outcome.steps` stays empty, for SGLang's scheduler is not here."""
    for number, request in enumerate(talks):
        radix.request(number, request)
    return radix.outcome
