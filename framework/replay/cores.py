"""Selection of the core that counts a cache-only replay: the allocator's own, or the reference in Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from framework import registry
from framework.guard.allocator import count_references
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.replay.paths import RequestPaths
from framework.replay.reference import CacheOnlyResult, replay, summarise

PYTHON = "python"


def count(
    allocator: Any, paths: RequestPaths, policy: EvictionPolicy, num_blocks: int, *, leaf_first: bool = False
) -> tuple[str, CacheOnlyResult]:
    """The counts, and the name of the allocator whose core made them; `PYTHON` for the reference.

    A core that has no version of this policy is said so in one sentence on stderr.

    Args:
        allocator: a name, a mapping with a name, a class or an object, as in a configuration; None asks nobody. It is
            not built: a cache-only replay keeps no tables.

    Raises:
        PluginError: the core failed, or counted for another number of requests, or more hits than blocks.
    """
    name, kind = _chosen(allocator)
    if kind is not None and _has_core(kind):
        found = count_references(kind, paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass)
        if found is not None:
            return name, summarise(paths, found.request_hits, found.admitted, found.evictions)
        sentence = f"allocator={name} cannot count {type(policy).__name__} itself: counted in Python, the same integers"
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201
    return PYTHON, replay(paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass)


def _chosen(allocator: Any) -> tuple[str, type[Allocator] | None]:
    if isinstance(allocator, Mapping):
        allocator = allocator.get("name")
    if allocator is None:
        return "", None
    if isinstance(allocator, str):
        return allocator, registry.load("allocator", allocator)
    kind = allocator if isinstance(allocator, type) else type(allocator)
    return kind.__name__, kind


def _has_core(kind: type[Allocator]) -> bool:
    method: Any = kind.replay_references
    return getattr(method, "__func__", method) is not Allocator.replay_references.__func__  # type: ignore[attr-defined]
