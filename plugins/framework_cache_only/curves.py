"""Hit rate over capacity, for many policies at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

from framework.cli.exit import end_with_parent
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import build_component
from framework_cache_only.paths import Ints32, RequestPaths, summarise
from framework_cache_only.reference import replay
from framework_cache_only.stack import reuse_distances


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One policy at one capacity. Counts as in CacheOnlyResult; evictions is None where one pass gave the curve.

    `hit_rate` is by tokens: the primary definition.
    """

    policy: str
    num_blocks: int
    hit_blocks: int
    prompt_blocks: int
    hit_tokens: int
    prompt_tokens: int
    evictions: int | None
    hit_rate: float
    hit_rate_blocks: float


def hit_curves(
    paths: RequestPaths,
    policies: Mapping[str, Any],
    capacities: Sequence[int],
    *,
    jobs: int = 1,
    seed: int = 0,
    leaf_first: bool = False,
    progress: Callable[[int], Any] = lambda references: None,
) -> list[CurvePoint]:
    """Every policy at every capacity in the request model; see replay.reference.

    Args:
        policies: label -> component: a name, or a mapping with a name and options. A policy that says `recency_stack`
            is one pass for all capacities; the others are a replay each, in `jobs` processes.
        progress: called with the block references replayed since the last call; in all references * capacities *
            policies.

    Returns:
        In the order of policies and capacities.
    """
    points: dict[tuple[str, int], CurvePoint] = {}
    tasks: list[tuple[str, Any, int]] = []
    for label, component in policies.items():
        policy = _build(component, max(capacities), paths.block_tokens, seed)
        if policy.recency_stack and not policy.bypass:
            for point in _stack_curve(paths, label, capacities):
                points[label, point.num_blocks] = point
            progress(paths.num_references * len(capacities))
        else:
            tasks += [(label, component, capacity) for capacity in capacities]
    for point in _replays(paths, tasks, jobs, seed, leaf_first):
        points[point.policy, point.num_blocks] = point
        progress(paths.num_references)
    return [points[label, capacity] for label in policies for capacity in capacities]


def _build(component: Any, num_blocks: int, block_size: int, seed: int) -> EvictionPolicy:
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": seed}
    policy: EvictionPolicy = build_component("eviction", component, shared)
    return policy


def _stack_curve(paths: RequestPaths, label: str, capacities: Sequence[int]) -> list[CurvePoint]:
    distances, points = reuse_distances(paths), []
    for capacity in capacities:
        hit = (distances > 0) & (distances <= capacity)
        request_hits = np.bincount(paths.requests, weights=hit, minlength=paths.num_requests).astype(np.int32)
        points.append(_point(paths, label, capacity, request_hits, None))
    return points


def _point(paths: RequestPaths, label: str, num_blocks: int, request_hits: Ints32, evictions: int | None) -> CurvePoint:
    counts = summarise(paths, request_hits, 0, 0)
    return CurvePoint(
        policy=label, num_blocks=num_blocks, hit_blocks=counts.hit_blocks, prompt_blocks=counts.prompt_blocks,
        hit_tokens=counts.hit_tokens, prompt_tokens=counts.prompt_tokens, evictions=evictions, hit_rate=counts.hit_rate,
        hit_rate_blocks=counts.block_hit_rate,
    )  # fmt: skip


_WORTH_A_PROCESS = 1_000_000
"""Block references; below, a new process takes longer to start than the replays take."""


def _replay(paths: RequestPaths, seed: int, leaf_first: bool, task: tuple[str, Any, int]) -> CurvePoint:
    label, component, capacity = task
    policy = _build(component, capacity, paths.block_tokens, seed)
    result = replay(paths, policy, capacity, leaf_first=leaf_first, bypass=policy.bypass)
    return _point(paths, label, capacity, result.request_hits, result.evictions)


def _replays(paths: RequestPaths, tasks: list[tuple[str, Any, int]], jobs: int, seed: int, leaf_first: bool) -> Any:
    if jobs <= 1 or len(tasks) <= 1 or paths.num_references * len(tasks) < _WORTH_A_PROCESS:
        yield from (_replay(paths, seed, leaf_first, task) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=spawn, initializer=end_with_parent) as pool:
        for future in as_completed([pool.submit(_replay, paths, seed, leaf_first, task) for task in tasks]):
            yield future.result()
