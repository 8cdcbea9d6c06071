"""Copies between pool and host, and the link model that fits them: a JSON line of the model, then one a point.

    python experiments/gpu/links.py [--dry-run]

The host store as a serve run uses it (pinned memory, a stream for each direction): loads of 1 to 32 blocks and as many
stores, at three sizes of a block, because each stored block is an operation of its own and one size could not tell
bandwidth from latency. Each direction is measured alone. A model is seconds an operation and bytes a second; tiers take
one of both directions (`bytes_per_s`, `operation_s`); points that it misses by more than 15 % are named.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from framework.engine.pool import KVPool
from framework.errors import StoreFailed
from framework.interfaces.attention import AttentionSpec
from framework.replay.roofline import ROOFLINE_SHAPES
from framework.types import BlockHash
from framework_testing.kernel.bench import last_level_cache_bytes
from framework_tiers.block_bytes import as_bytes, pool_bytes
from framework_tiers.setup import open_stores
from framework_tiers.store import BlockFormat
from framework_tiers.transfers import Copy
from framework_tiers.worker import WorkerTransfers

COUNTS = (1, 2, 4, 8, 16, 32)
POOL_BLOCKS = 2 * max(COUNTS)
ROUNDS = (3, 200)  # least and most
TOLERANCE = 0.15
Timer = Callable[[str, int], float]
Point = tuple[int, int, float]
"""(operations one after another, bytes in all, seconds)."""


def rounds(timer: Timer, way: str, budget_s: float) -> dict[int, float]:
    """Seconds by number of blocks: the lower quartile of the rounds; other work only adds to a time."""
    taken: dict[int, list[float]] = {count: [] for count in COUNTS}
    end = time.perf_counter() + budget_s
    for turn in range(ROUNDS[1]):
        for count in COUNTS:
            seconds = timer(way, count)
            if turn:  # the first warms up
                taken[count].append(seconds)
        if turn >= ROUNDS[0] and time.perf_counter() > end:
            break
    return {count: float(np.quantile(seconds, 0.25)) for count, seconds in taken.items()}


class StoreTimer:
    """Loads and stores of one store through `WorkerTransfers`, and a pool's blocks."""

    def __init__(self, transfers: WorkerTransfers, cache_bytes: int) -> None:
        self._transfers, self._turn = transfers, 0
        self._others = np.zeros(2 * cache_bytes, dtype=np.uint8)

    def __call__(self, way: str, count: int) -> float:
        self._turn += 1
        keys = [BlockHash(f"{self._turn} {number}".encode()) for number in range(count)]
        stores = [[Copy(key, 0, 1, 1 + number)] for number, key in enumerate(keys)]
        if way == "read":
            self._carry_out(stores)
        self._others.fill(1)  # blocks are not in the processor's caches
        loads = [[Copy(key, 1, 0, 1 + number) for number, key in enumerate(keys)]]
        start = time.perf_counter()
        self._carry_out(loads if way == "read" else stores)
        seconds = time.perf_counter() - start
        for key in keys:
            self._transfers.remove(key, 1)
        return seconds

    def _carry_out(self, operations: list[list[Copy]]) -> None:
        for copies in operations:
            self._transfers.submit(copies)
        while self._transfers.num_pending:
            self._transfers.wait(None)
            for copy in self._transfers.finished():
                if copy.failed:
                    raise StoreFailed(copy.failed)


def of_the_host_store(
    pool_of: Callable[[int], KVPool], block_size: int, budget_s: float, cache_bytes: int
) -> Iterator[tuple[str, Point]]:
    """(direction, point) of the host store, at blocks of a quarter of the tokens, of so many, and of four times."""
    for tokens in dict.fromkeys((block_size, max(1, block_size // 4), block_size * 4)):
        pool = pool_of(tokens)
        bytes_of = pool_bytes(as_bytes(pool.tensors_of(0)))
        size = bytes_of.block_bytes
        format = BlockFormat("measurement of links", pool.dtype, pool.layout, tokens, "counted", size)
        [store], _ = open_stores([{"store": {"name": "host"}, "num_blocks": POOL_BLOCKS + 1}], format, bytes_of)
        transfers = WorkerTransfers(bytes_of, [store], lambda: 0.0)
        try:
            timer = StoreTimer(transfers, cache_bytes)
            for way in ("read", "write"):
                for count, seconds in rounds(timer, way, budget_s / 2).items():
                    yield way, (1 if way == "read" else count, count * size, seconds)
        finally:
            transfers.close(drain=True)


def fitted(points: list[Point]) -> tuple[float, float | None]:
    """Seconds an operation and bytes a second that come nearest to the points, by least squares of relative errors.

    Neither is negative; None where bytes make no difference.
    """
    table, seconds = np.array([point[:2] for point in points], dtype=np.float64), np.array([p[2] for p in points])
    scale = table.max(axis=0)  # counts and bytes differ by many powers of ten
    design = table / scale / seconds[:, None]
    terms = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0]
    if terms.min() < 0 or np.linalg.matrix_rank(design) < 2:
        kept = int(np.argmax(terms)) if terms.min() < 0 else 1
        terms = np.zeros(2)
        terms[kept] = np.linalg.lstsq(design[:, kept : kept + 1], np.ones(len(points)), rcond=None)[0][0]
    operation_s, byte_s = (terms / scale).tolist()
    return operation_s, 1 / byte_s if byte_s > 0 else None


def main() -> int:
    """Measure and print."""
    dry = "--dry-run" in sys.argv[1:]
    device, shape = ("cpu", ROOFLINE_SHAPES["qwen3-100m"]) if dry else ("cuda", ROOFLINE_SHAPES["llama-3.1-8b"])
    budget_s, block_size, cache_bytes = (0.01, 4, 2**20) if dry else (2.0, 16, last_level_cache_bytes("cpu"))

    def pool_of(tokens: int) -> KVPool:
        width = shape.kv_numbers_per_token // 2
        spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=width, dtype="bfloat16", block_size=tokens)
        return KVPool(spec, shape.num_layers, POOL_BLOCKS, device)

    points = list(of_the_host_store(pool_of, block_size, budget_s, cache_bytes))
    models = {way: fitted([point for one, point in points if one == way]) for way in ("read", "write")}
    rows: list[dict[str, Any]] = []
    for way, (operations, num_bytes, seconds) in points:
        operation_s, rate = models[way]
        model_s = operations * operation_s + (num_bytes / rate if rate else 0.0)
        row = {"direction": way, "operations": operations, "bytes": num_bytes, "time_s": seconds}
        rows.append({**row, "model_s": model_s, "off": model_s / seconds - 1})
    facts: dict[str, Any] = {f"{way}_operation_s": model[0] for way, model in models.items()}
    facts |= {f"{way}_bytes_per_s": model[1] for way, model in models.items()}
    for row in (facts | {"off_by_15_percent": [row for row in rows if abs(row["off"]) > TOLERANCE]}, *rows):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
