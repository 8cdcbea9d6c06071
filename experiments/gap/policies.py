"""Replayed by the gap experiment: installed policies by name and options, and clients that foretell with an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from framework import registry
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import build_component
from framework.replay.paths import KnownRequests, RequestPaths
from framework.types import Hint


def kind_of(name: str) -> type[EvictionPolicy]:
    """The class of what `build` makes."""
    found: type[EvictionPolicy] = registry.load("eviction", name.split(" ")[0])
    return found


def build(name: str, paths: RequestPaths, capacity: int) -> EvictionPolicy:
    """An installed policy: "NAME OPTION=JSON ..."."""
    policy, *options = name.split(" ")
    chosen = {"name": policy, **{key: json.loads(value) for key, value in (part.split("=", 1) for part in options)}}
    shared = {"num_blocks": capacity, "seed": 0, "block_size": paths.block_tokens}
    built: EvictionPolicy = build_component("eviction", chosen, shared)
    return built


def continuations(paths: RequestPaths) -> tuple[list[bool], list[float]]:
    """(R,) whether a later prompt extends each request's, and (R,) seconds until the first such arrives."""
    last: dict[int, int] = {}
    known = paths.known
    times = known.arrival if known is not None else [float(i) for i in range(paths.num_requests)]
    extended, gaps = [False] * paths.num_requests, [0.0] * paths.num_requests
    for request, (start, full) in enumerate(zip(paths.starts.tolist(), paths.full_blocks.tolist(), strict=False)):
        path = paths.nodes[start : start + full].tolist()
        for node in path:
            before = last.get(node)
            if before is not None and not extended[before]:
                extended[before], gaps[before] = True, (times[request] or 0.0) - (times[before] or 0.0)
        if path:
            last[path[-1]] = request
    return extended, gaps


def with_labels(paths: RequestPaths, error: float) -> RequestPaths:
    """The trace whose clients say whether they will continue, wrong with this probability."""
    extended, _ = continuations(paths)
    wrong = np.random.default_rng(0).random(len(extended)) < error
    hints = [Hint(continues=float(truth != lie)) for truth, lie in zip(extended, wrong.tolist(), strict=True)]
    return _with_hints(paths, hints)


def with_times(paths: RequestPaths, sigma: float) -> RequestPaths:
    """The trace whose clients say when they come back, with a log-normal error; who does not come back says nothing."""
    extended, gaps = continuations(paths)
    noise = np.exp(np.random.default_rng(0).normal(0.0, sigma, len(gaps)))
    hints = [
        Hint(returns_s=gap * factor) if truth else None
        for truth, gap, factor in zip(extended, gaps, noise.tolist(), strict=True)
    ]
    return _with_hints(paths, hints)


def _with_hints(paths: RequestPaths, hints: Sequence[Hint | None]) -> RequestPaths:
    return replace(paths, known=replace(paths.known or KnownRequests.empty(), hint=list(hints)))
