"""The victims of an eviction: asked of the policy, checked, and restored to it when the eviction is called off."""

from __future__ import annotations

from contextlib import suppress
from operator import length_hint
from typing import Protocol

import numpy as np

from framework.errors import PluginError
from framework.guard.policy import GuardedPolicy
from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool

_MANY = 64  # blocks from which on NumPy takes less time than a loop


class Cached(Protocol):
    """Blocks with their policy: a BlockCache, or the facts kept of another engine's pool."""

    pool: BlockPool
    policy: GuardedPolicy
    leaf_only: bool

    @property
    def index(self) -> PrefixIndex: ...
    @property
    def now(self) -> float: ...
    def is_leaf(self, block: int) -> bool: ...


class Victims:
    """Asks the policy for victims, checks what it answers, and gives them back to it when the eviction is called off.

    Of the pool it changes only `candidate`.
    """

    def __init__(self, cache: Cached) -> None:
        self._cache = cache

    def take(self, count: int) -> list[int]:
        """`count` victims that the policy has forgotten; the pool shows it only by `candidate`."""
        cache = self._cache
        if count == 1 or cache.leaf_only or not cache.policy.in_bulk:
            return self._gather(count)
        named = cache.policy.victims(count, cache.now)
        candidate, taken = cache.pool.candidate, 0
        whole = [*map(type, named)].count(int) == len(named)
        if whole and len(named) == count >= _MANY and self._are_candidates(named):
            return named
        if whole and min(named, default=0) > 0:
            rest = iter(named)
            try:
                for block in rest:
                    candidate[block] -= 1
                taken = len(named)
            except (IndexError, ValueError):  # no block, or 0 less 1: no candidate, or named before
                taken = len(named) - 1 - length_hint(rest)
        if taken == len(named) == count:
            return named
        self.restore(named[:taken], [])
        raise cache.policy.fault("victims", f"must name {count} distinct candidates, named {named}")

    def _are_candidates(self, named: list[int]) -> bool:
        """Whether these integers are distinct candidates, which they are no longer then. No: nothing changed."""
        pool, at = self._cache.pool, np.array(named)
        if at.dtype != np.intp or at[at.argmin()] < 1 or at[at.argmax()] > pool.num_blocks:  # other: too large for C
            return False
        candidate, order = np.frombuffer(pool.candidate, dtype=np.uint8), np.arange(len(at), dtype=np.int32)
        place = np.frombuffer(pool.slot, dtype=np.int32)  # of free blocks, so that of a candidate may hold anything
        if np.count_nonzero(candidate[at]) != len(at):
            return False
        place[at] = order
        if np.count_nonzero(place[at] == order) != len(at):  # a block named twice holds the later of its places
            return False
        candidate[at] = 0
        return True

    def _gather(self, count: int) -> list[int]:
        """Ask the policy for victims, changing nothing of the pool but `candidate`, which marks those chosen.

        Under `leaf_only` a victim's parent is offered as soon as it has no other resident child.
        """
        cache = self._cache
        policy, candidate, now = cache.policy, cache.pool.candidate, cache.now
        victims: list[int] = []
        late: list[int] = []
        try:
            for _ in range(count):
                block = policy.victim(now, candidate)
                candidate[block] = 0
                victims.append(block)
                parent = cache.index.parent(block) if cache.leaf_only else 0
                if parent:
                    cache.pool.children[parent] -= 1
                policy.evicted(block, now)
                if parent and not cache.pool.ref[parent] and cache.is_leaf(parent):
                    candidate[parent] = 1
                    late.append(parent)
                    policy.release([parent], now)
        except PluginError:
            self.restore(victims, late)
            raise
        if cache.leaf_only:
            for block in victims:
                parent = cache.index.parent(block)
                cache.pool.children[parent] += parent > 0  # `_evict` counts them down for good
        return victims

    def restore(self, victims: list[int], late: list[int]) -> None:
        """Let the policy keep these after all, and take back the `late` ones that were offered in their wake."""
        cache = self._cache
        pool = cache.pool
        if cache.leaf_only:
            for block in victims:
                parent = cache.index.parent(block)
                pool.children[parent] += parent > 0
        withheld = set(late)
        for block in reversed(victims):
            with suppress(PluginError):  # the first error is the one to report
                cache.policy.admit([block], cache.now)
                if block not in withheld:
                    cache.policy.release([block], cache.now)
            pool.candidate[block] = 1
        chosen = set(victims)
        for block in late:
            pool.candidate[block] = 0
            if block not in chosen:
                with suppress(PluginError):
                    cache.policy.pin([block], cache.now)
