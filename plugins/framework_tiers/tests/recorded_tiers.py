"""Tiers of a cache-only replay that note what each request moved, to compare with an engine's own tiers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from experiments.shared import CONVERSATION, MissingTrace, trace_path
from framework_cache_only.paths import RequestPaths, build_paths
from framework_tiers.counted import CountedTiers
from framework_workloads.trace import open_trace


def conversation_paths(num_requests: int) -> RequestPaths:
    """Whole blocks of the conversation trace's first requests. Skips the test where the trace is not at hand."""
    try:
        trace = open_trace(trace_path(CONVERSATION))
    except MissingTrace as missing:
        pytest.skip(str(missing))
    return build_paths(itertools.islice(trace, num_requests), full_blocks_only=True)


@dataclass(frozen=True, slots=True)
class Moves:
    """What one request moves in the first tier below the pool: nodes of the trace's prefix tree, each list in order.

    Attributes:
        path: the request's own nodes.
        in_pool: how many of them, from the first, the pool held.
        promoted, evicted, stored: what the request was given by the tier, what the tier evicted, what it took.
    """

    path: list[int]
    in_pool: int
    promoted: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)


class RecordedTiers(CountedTiers):
    """Attributes: requests, the moves of each request so far."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.requests: list[Moves] = []
        tier = self.lower.tiers[0]
        victim, insert, hit = tier.victim, tier.insert, tier.hit

        def evict(now: float) -> Any:
            found = victim(now)
            assert found is not None
            self.requests[-1].evicted.append(found)
            return found

        def store(key: Any, now: float, *, pinned: bool) -> None:
            self.requests[-1].stored.append(key)
            insert(key, now, pinned=pinned)

        def promote(key: Any) -> None:
            self.requests[-1].promoted.append(key)
            hit(key)

        tier.victim, tier.insert, tier.hit = evict, store, promote  # type: ignore[method-assign]

    def begin(self, request: int, path: Sequence[int], blocks: Sequence[Any]) -> int:
        in_pool = next((at for at, block in enumerate(blocks) if not block), len(blocks))
        self.requests.append(Moves(list(path), in_pool))
        return super().begin(request, path, blocks)
