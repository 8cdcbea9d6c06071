"""Streams of requests that policies may learn from."""

from __future__ import annotations

import random

import numpy as np

from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.types import Hint
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay


def conversations(count: int = 900, seed: int = 0, lie: float = 0.0) -> RequestPaths:
    """Half of the conversations ("chat") go on for six turns, half ("once") never; clients say so, some wrongly."""
    draw, due, requests = random.Random(seed), [], []
    for number in range(count):
        goes_on = number % 2 == 0
        start = float(number)
        for turn in range(6 if goes_on else 1):
            due.append((start, number, turn, goes_on))
            start += draw.uniform(20.0, 60.0)
    for arrival, number, turn, goes_on in sorted(due):
        says = goes_on and turn < 5
        if draw.random() < lie:
            says = not says
        ids = [number * 1000 + depth for depth in range(4 + 2 * turn)]
        requests.append(
            WorkloadRequest(
                arrival_s=arrival, input_tokens=2 * len(ids), output_tokens=1, block_tokens=2, block_ids=np.array(ids),
                category="chat" if goes_on else "once", hint=Hint(continues=0.9 if says else 0.1),
            )
        )  # fmt: skip
    return build_paths(requests)


def hits(policy: EvictionPolicy, paths: RequestPaths, capacity: int = 250) -> int:
    return replay(paths, policy, capacity).hit_blocks


def requests_of(paths: list[tuple[float, list[int]]]) -> RequestPaths:
    """Requests of these arrivals and block ids, of which nothing else is known."""
    return build_paths(
        WorkloadRequest(
            arrival_s=at, input_tokens=2 * len(ids), output_tokens=1, block_tokens=2, block_ids=np.array(ids)
        )
        for at, ids in sorted(paths, key=lambda due: due[0])
    )
