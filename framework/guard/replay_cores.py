"""Error boundary around the cores of allocators that count cache-only replays themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument, PluginError
from framework.guard.boundary import Boundary
from framework.guard.counts import is_count
from framework.interfaces.allocator import Allocator, ReferencePaths, ReplayCounts
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.replay_counts import TierCounts, TieredReplayCounts
from framework.interfaces.tiering import Tiering

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
    lengths = np.diff(paths.starts)
    _check_shape(boundary, hook, found.request_hits, lengths.shape)
    _check_hits(boundary, hook, found.request_hits, lengths)
    return found


def count_tiers(
    cls: type[Allocator],
    paths: ReferencePaths,
    policies: Sequence[EvictionPolicy],
    num_blocks: Sequence[int],
    rule: Tiering,
    *,
    leaf_first: bool = False,
) -> TieredReplayCounts | None:
    """`cls.replay_tiers` with these arguments: a count a request and tier, in sum none above the request's blocks.

    Raises:
        PluginError: the core failed, or counted what cannot be.
    """
    boundary, hook = Boundary("allocator", cls, _CONTRACT), "replay_tiers"
    core = partial(cls.replay_tiers, leaf_first=leaf_first)
    found: Any = boundary.call(hook, core, paths, policies, num_blocks, rule)
    if found is None:
        return None
    if not isinstance(found, TieredReplayCounts) or not _are_counts(found, len(policies) - 1):
        boundary.wrong(hook, "must return TieredReplayCounts of ints and every lower tier's TierCounts, or None", found)
    lengths, hits = np.diff(paths.starts), found.tier_hits
    _check_shape(boundary, hook, hits, (len(lengths), len(policies)))
    _check_hits(boundary, hook, np.where((hits < 0).any(axis=1), -1, hits.sum(axis=1, dtype=np.int64)), lengths)
    return found


def _are_counts(found: TieredReplayCounts, num_lower: int) -> bool:
    tiers = found.tiers
    if type(tiers) is not tuple or len(tiers) != num_lower or not all(type(tier) is TierCounts for tier in tiers):
        return False
    own = (found.pool_hit_tokens, found.admitted, found.evictions)
    return all(map(is_count, (*own, *(count for tier in tiers for count in astuple(tier)))))


def _check_shape(boundary: Boundary, hook: str, hits: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(hits, np.ndarray) or hits.dtype.kind not in "iu" or hits.shape != shape:
        counted = getattr(hits, "shape", type(hits).__name__)
        meant = f"{shape[0]} requests" + "".join(f" and {count} tiers" for count in shape[1:])
        raise boundary.fault(hook, f"must count {meant} in an array of ints, counted {counted}")


def _check_hits(boundary: Boundary, hook: str, hits: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> None:
    """Raise where a request hit fewer blocks than none or more than it references; -1 stands for any below 0."""
    wrong = ((hits < 0) | (hits > lengths)).nonzero()[0]
    if len(wrong):
        at = int(wrong[0])
        raise boundary.fault(hook, f"counted {hits[at]} hits of request {at}, which references {lengths[at]} blocks")
