"""Hit rate over capacity, for many policies at once."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

from framework.cli.exit import end_with_parent
from framework.errors import ConfigError, shown
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import build_component
from framework.replay.paths import Ints32, RequestPaths, summarise
from framework.replay.reference import replay
from framework.replay.stack import reuse_distances

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
_MOST = 1e15  # of any unit: more than any machine has
_CAPACITY = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]i?B|B)?")


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


def capacity_blocks(
    text: str, *, working_set: int, bytes_per_block: int | None = None, name: str = "a capacity"
) -> int:
    """Blocks meant by "10000" (blocks), "40GiB", "500MB" (bytes) or "25%" (of the distinct blocks, at least one).

    Args:
        name: of the option, for the message.

    Raises:
        ConfigError: none of these, less than one block, or bytes where the size of a block is not known.
    """
    match = _CAPACITY.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{name} is blocks (10000), bytes (40GiB, 500MB) or a share (25%), found {text!r}")
    number, unit = float(match[1]), match[2]
    if not number <= _MOST:
        raise ConfigError(f"{name} is at most {_MOST:.0e}, found {shown(text)}")
    if unit is None:
        if not number.is_integer():
            raise ConfigError(f"{name} in blocks is a whole number, found {text!r}; a share is written 25%")
        blocks = int(number)
    elif unit == "%":
        if number > 100:
            raise ConfigError(f"{name} is at most 100% of the distinct blocks, found {text!r}")
        blocks = max(round(working_set * number / 100), 1 if number else 0)
    elif bytes_per_block is None:
        raise ConfigError(f"{name} of {text} needs the model's shape: add --shape")
    else:
        blocks = int(number * _UNITS[unit]) // bytes_per_block
    if blocks < 1:
        raise ConfigError(f"{name} of {text} is less than one block")
    return blocks


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
    found: dict[tuple[str, int], CurvePoint] = {}
    tasks: list[tuple[str, Any, int]] = []
    for label, component in policies.items():
        policy = _build(component, max(capacities), paths.block_tokens, seed)
        if policy.recency_stack and not policy.bypass:
            for point in _stack_curve(paths, label, capacities):
                found[label, point.num_blocks] = point
            progress(paths.num_references * len(capacities))
        else:
            tasks += [(label, component, capacity) for capacity in capacities]
    for point in _replays(paths, tasks, jobs, seed, leaf_first):
        found[point.policy, point.num_blocks] = point
        progress(paths.num_references)
    return [found[label, capacity] for label in policies for capacity in capacities]


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
    found = summarise(paths, request_hits, 0, 0)
    return CurvePoint(
        policy=label, num_blocks=num_blocks, hit_blocks=found.hit_blocks, prompt_blocks=found.prompt_blocks,
        hit_tokens=found.hit_tokens, prompt_tokens=found.prompt_tokens, evictions=evictions, hit_rate=found.hit_rate,
        hit_rate_blocks=found.block_hit_rate,
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
