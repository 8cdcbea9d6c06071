"""Cache-only replay of tiers counted in C++: the framework's own rules over policies that the core knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.replay_counts import ReferencePaths, TierCounts, TieredReplayCounts
from framework.interfaces.tiering import Tiering
from framework_native._core import replay_tiers as core
from framework_native.replay import MOST_BLOCKS, named

_POLICIES = frozenset(
    ["lru", "fifo", "mru", "lfu", "length_aware", "belady", "optimum", "clock", "sieve", "slru", "s3fifo"]
)
"""Those whose order in C++ is right also where blocks come late, as a demoted one does."""

_Terms = tuple[bool, int]
"""Whether a block goes down when its tier evicts it; from which use on when it is written or used, 0: never then."""

_MOST_USES = 2**32
"""More than any content has: a core counts fewer requests."""

_RULES: Mapping[str, Callable[[Any], _Terms]] = MappingProxyType(
    {
        "framework_builtin.tiering.never:Never": lambda rule: (False, 0),
        "framework_builtin.tiering.on_eviction:OnEviction": lambda rule: (True, 0),
        # Without predicted times, as in every cache-only replay, it loads all.
        "framework_builtin.tiering.load_or_recompute:LoadOrRecompute": lambda rule: (True, 0),
        "framework_builtin.tiering.write_through:WriteThrough": lambda rule: (False, 1),
        "framework_builtin.tiering.on_second_hit:OnSecondHit": lambda rule: (False, min(rule.uses, _MOST_USES)),
    }
)
"""Exactly these classes, no subclass of them."""


def replay_tiers(
    paths: ReferencePaths,
    policies: Sequence[EvictionPolicy],
    num_blocks: Sequence[int],
    rule: Tiering,
    *,
    leaf_first: bool = False,
) -> TieredReplayCounts | None:
    """See Allocator.replay_tiers. None for rules and policies that have no twin in C++, and capacities beyond 64 bits.

    About 20 bytes a node of the trace, 5 more a node and tier, and what `replay_references` takes for each tier's
    blocks. Lets go of the GIL.
    """
    for number, blocks in enumerate(num_blocks):
        if blocks < 1:
            raise InvalidArgument(f"tier {number}: num_blocks must be at least 1, found {blocks}")
    terms, twins = _terms(rule), [named(policy) for policy in policies]
    known = [twin for twin in twins if twin is not None and twin[0] in _POLICIES]
    if terms is None or len(known) < len(twins) or max(num_blocks) > MOST_BLOCKS:
        return None
    on_eviction, uses = terms
    foresees = any(policy.needs_future for policy in policies)
    hits, pool_tokens, admitted, evictions, tiers = core(
        [name for name, _ in known],
        [parameters for _, parameters in known],
        list(num_blocks),
        on_eviction=on_eviction,
        uses=uses,
        exclusive=rule.exclusive,
        nodes=np.ascontiguousarray(paths.nodes, dtype=np.int32),
        starts=np.ascontiguousarray(paths.starts, dtype=np.int64),
        parents=np.ascontiguousarray(paths.parents, dtype=np.int32),
        node_tokens=np.ascontiguousarray(paths.node_tokens, dtype=np.int64),
        next_requests=np.ascontiguousarray(paths.next_requests, dtype=np.int32) if foresees else None,
        leaf_first=leaf_first,
    )
    return TieredReplayCounts(
        tier_hits=hits,
        pool_hit_tokens=pool_tokens,
        admitted=admitted,
        evictions=evictions,
        tiers=tuple(TierCounts(*counts) for counts in tiers),
    )


def _terms(rule: Tiering) -> _Terms | None:
    """None for rules that have no twin, and for attributes that the framework must refuse or count itself."""
    kind = type(rule)
    terms = _RULES.get(f"{kind.__module__}:{kind.__qualname__}")
    if terms is None or type(rule.exclusive) is not bool or type(getattr(rule, "uses", 0)) is not int:
        return None
    return terms(rule)
