"""Error boundary around allocators that count cache-only replays themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from framework.errors import InvalidArgument, PluginError
from framework.guard.boundary import Boundary
from framework.guard.counts import is_count
from framework.interfaces.allocator import Allocator, ReferencePaths, ReplayCounts
from framework.interfaces.eviction import EvictionPolicy

_CONTRACT = (InvalidArgument, PluginError)


def has_core(cls: type[Allocator], hook: str) -> bool:
    """Whether the class has a method `hook` of its own; an allocator made before there was one has none."""
    method: Any = getattr(cls, hook, None)
    inherited: Any = getattr(Allocator, hook)
    return method is not None and getattr(method, "__func__", method) is not inherited.__func__


def count_references(
    cls: type[Allocator],
    paths: ReferencePaths,
    policy: EvictionPolicy,
    num_blocks: int,
    *,
    leaf_first: bool = False,
    bypass: bool = False,
) -> ReplayCounts | None:
    """`cls.replay_references` with these arguments: one count a request, none above its blocks.

    Raises:
        PluginError: the core failed, or counted what cannot be.
    """
    boundary, hook = Boundary("allocator", cls, _CONTRACT), "replay_references"
    core = partial(cls.replay_references, leaf_first=leaf_first, bypass=bypass)
    found: Any = boundary.call(hook, core, paths, policy, num_blocks)
    if found is None:
        return None
    if not isinstance(found, ReplayCounts) or not (is_count(found.admitted) and is_count(found.evictions)):
        boundary.wrong(hook, "must return ReplayCounts of ints, or None", found)
    lengths, hits = np.diff(paths.starts), found.request_hits
    if not isinstance(hits, np.ndarray) or hits.dtype.kind not in "iu" or hits.shape != lengths.shape:
        counted = getattr(hits, "shape", type(hits).__name__)
        raise boundary.fault(hook, f"must count {len(lengths)} requests in an array of ints, counted {counted}")
    wrong = ((hits < 0) | (hits > lengths)).nonzero()[0]
    if len(wrong):
        at = int(wrong[0])
        raise boundary.fault(hook, f"counted {hits[at]} hits of request {at}, which references {lengths[at]} blocks")
    return found
