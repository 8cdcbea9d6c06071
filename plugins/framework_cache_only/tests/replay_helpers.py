"""Small workloads and a slow, straightforward model of the request-level cache, sharing no code with the fast one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from framework.interfaces.workload import WorkloadRequest
from framework.types import Namespace
from framework_cache_only.paths import RequestPaths, build_paths

Path = tuple[int, ...]
Key = Callable[[dict[str, int]], tuple[int, ...]]

KEYS: dict[str, Key] = {
    "lru": lambda b: (b["last"], -b["depth"]),
    "fifo": lambda b: (b["inserted"], -b["depth"]),
    "lfu": lambda b: (b["frequency"], b["last"], -b["depth"]),
    "length_aware": lambda b: (b["frequency"], -b["depth"], b["last"]),
}


def workload(
    requests: Sequence[Sequence[int]], block_tokens: int = 4, salts: Sequence[str] | None = None
) -> RequestPaths:
    """Requests whose block ids, and namespaces, are given; every block is full."""
    return build_paths(
        WorkloadRequest(
            arrival_s=float(i),
            input_tokens=max(1, len(ids) * block_tokens),
            output_tokens=1,
            block_ids=np.array(ids, dtype=np.int64),
            block_tokens=block_tokens,
            namespace=Namespace(salt=salts[i] if salts else ""),
        )
        for i, ids in enumerate(requests)
    )


def flat_paths(paths: RequestPaths) -> RequestPaths:
    """Each reference as its own request of one block, prefixes forgotten: what caches of independent objects see."""
    count = paths.num_references
    return RequestPaths(
        nodes=paths.nodes,
        starts=np.arange(count + 1, dtype=np.int64),
        parents=np.full(paths.num_nodes, -1, dtype=np.int32),
        depths=np.zeros(paths.num_nodes, dtype=np.int32),
        input_tokens=np.full(count, paths.block_tokens, dtype=np.int64),
        tenants=paths.tenants[paths.requests],
        block_tokens=paths.block_tokens,
    )


def random_requests(seed: int, count: int, width: int = 2, longest: int = 4) -> list[list[int]]:
    """Paths in a small tree: `width` choices at each depth, up to `longest` deep."""
    rng = random.Random(seed)
    return [[rng.randrange(width) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def flushed(prompt: list[int], times: int, pool: int) -> list[list[int]]:
    """A prompt, again and again, each time after others filled the pool."""
    fill = random.Random(0)
    return [ids for _ in range(times) for ids in (prompt, *([fill.randrange(10**6)] for _ in range(pool)))]


def slow_replay(
    requests: Sequence[Sequence[int]], capacity: int, key: Key, leaf_first: bool = False
) -> tuple[list[int], int, int]:
    """(hits of each request, admitted, evictions), by the definition, with a linear scan an eviction."""
    cache: dict[Path, dict[str, int]] = {}
    hits, admitted, evicted = [], 0, 0
    for i, ids in enumerate(requests):
        path = [tuple(ids[: d + 1]) for d in range(len(ids))]
        k = 0
        while k < len(path) and path[k] in cache:
            k += 1
        hits.append(k)
        for node in path:
            if node in cache:
                cache[node]["last"] = i
                cache[node]["frequency"] += 1
        missing = [node for node in path if node not in cache]
        missing = missing[: capacity - (len(path) - len(missing))]
        for node in missing:
            if len(cache) >= capacity:
                others = [other for other in cache if other not in path]
                if leaf_first:
                    others = [o for o in others if not any(c[:-1] == o for c in cache)]
                victim = min(others, key=lambda other: key(cache[other]))
                del cache[victim]
                evicted += 1
            cache[node] = {"last": i, "inserted": i, "frequency": 1, "depth": len(node) - 1}
            admitted += 1
    return hits, admitted, evicted


def best_hits(requests: Sequence[Sequence[int]], capacity: int, bypass: bool) -> int:
    """Most hit blocks of any schedule, by search over every cache content reachable after each request."""
    best: dict[frozenset[Path], int] = {frozenset(): 0}
    for ids in requests:
        path = [tuple(ids[: d + 1]) for d in range(len(ids))]
        following: dict[frozenset[Path], int] = {}
        for cache, hits in best.items():
            k = 0
            while k < len(path) and path[k] in cache:
                k += 1
            must = frozenset() if bypass else frozenset(path[:capacity])
            for kept in _subsets(sorted(cache | set(path)), capacity, must):
                following[kept] = max(following.get(kept, -1), hits + k)
        best = following
    return max(best.values())


def _subsets(nodes: list[Path], capacity: int, must: frozenset[Path]) -> list[frozenset[Path]]:
    chosen = []
    for flags in product((False, True), repeat=len(nodes)):
        kept = frozenset(node for node, flag in zip(nodes, flags, strict=True) if flag)
        if len(kept) <= capacity and must <= kept:
            chosen.append(kept)
    return chosen
