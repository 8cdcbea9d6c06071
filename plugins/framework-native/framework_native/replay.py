"""Cache-only replay counted in C++: blocks that a policy hits when each request is one atomic access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from framework.errors import InvalidArgument
from framework.interfaces.allocator import ReferencePaths, ReplayCounts
from framework.interfaces.eviction import EvictionPolicy
from framework_native._core import replay

_Parameters = Callable[[Any], tuple[float, ...]]


def _none(policy: Any) -> tuple[float, ...]:
    return ()


def _counted(limit: int) -> float:
    """A limit on what is counted: from 2^53 on it is never reached, and no larger integer is sure to be a double."""
    return min(limit, 2**53)


_MOST_BLOCKS = 2**62
_TWINS: Mapping[str, tuple[str, _Parameters]] = MappingProxyType(
    {
        "framework_builtin.eviction.lru:Lru": ("lru", _none),
        "framework_builtin.eviction.fifo:Fifo": ("fifo", _none),
        "framework_builtin.eviction.mru:Mru": ("mru", _none),
        "framework_builtin.eviction.lfu:Lfu": ("lfu", lambda policy: (policy._aged,)),
        "framework_builtin.eviction.length_aware:LengthAware": ("length_aware", _none),
        "framework_builtin.eviction.belady:Belady": ("belady", _none),
        "framework_builtin.eviction.optimum:Optimum": ("optimum", _none),
        "framework_builtin.eviction.clock:Clock": ("clock", lambda policy: (_counted(policy._max_count),)),
        "framework_builtin.eviction.sieve:Sieve": ("sieve", _none),
        "framework_builtin.eviction.slru:Slru": ("slru", lambda policy: (len(policy._segments),)),
        "framework_builtin.eviction.s3fifo:S3Fifo": (
            "s3fifo",
            lambda policy: (policy._small_share, policy._ghost_share, _counted(policy._promote_hits)),
        ),
    }
)
"""Exactly these classes, no subclass of them: its name in C++, and its constructor's parameters in order."""


def replay_references(
    paths: ReferencePaths, policy: EvictionPolicy, num_blocks: int, *, leaf_first: bool = False, bypass: bool = False
) -> ReplayCounts | None:
    """See Allocator.replay_references. None for policies that have no twin in C++, and for capacities beyond 64 bits.

    10 to 100 ns a reference by policy; about 120 bytes a block of capacity for lru, 4 a node of the trace. Lets go of
    the GIL.
    """
    if num_blocks < 1:
        raise InvalidArgument(f"num_blocks must be at least 1, found {num_blocks}")
    twin = _TWINS.get(f"{type(policy).__module__}:{type(policy).__qualname__}")
    if twin is None or num_blocks > _MOST_BLOCKS:
        return None
    name, parameters_of = twin
    hits, admitted, evictions = replay(
        name,
        parameters_of(policy),
        nodes=np.ascontiguousarray(paths.nodes, dtype=np.int32),
        starts=np.ascontiguousarray(paths.starts, dtype=np.int64),
        parents=np.ascontiguousarray(paths.parents, dtype=np.int32),
        next_requests=np.ascontiguousarray(paths.next_requests, dtype=np.int32) if policy.needs_future else None,
        num_blocks=num_blocks,
        leaf_first=leaf_first,
        bypass=bypass,
    )
    return ReplayCounts(request_hits=hits, admitted=admitted, evictions=evictions)
