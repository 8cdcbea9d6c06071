"""Times of copies between a pool and the stores of tiers, as a serve run makes them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from framework.engine.block_bytes import pool_bytes
from framework.engine.pool import KVPool
from framework.engine.tiers.setup import open_store
from framework.errors import ConfigError, StoreFailed
from framework.interfaces.store import BlockFormat
from framework.kernel.bench import last_level_cache_bytes
from framework.kernel.copies import DeviceCopies, Direction, Memory
from framework.kernel.link_fit import Point
from framework.tiers.transfers import Copy
from framework.tiers.worker import WorkerTransfers
from framework.types import BlockHash

COUNTS = (1, 2, 4, 8, 16, 32)
"""Blocks of one load; stores are of one block each, so many of them at once."""
POOL_BLOCKS = 2 * max(COUNTS)
"""Of a pool to measure with: both directions of the largest count."""
_WIDER = 4
"""Stores are measured at blocks of a quarter and of four times the tokens as well."""
_MIN_ROUNDS, _MAX_ROUNDS = 3, 200
_WAYS: tuple[tuple[Direction, ...], ...] = (("read",), ("write",), ("read", "write"))
Timer = Callable[[Sequence[Direction], int], float]
"""(directions, blocks each way) -> seconds from the asking to the end of the last copy."""


def typical(seconds: Sequence[float]) -> float:
    """The lower quartile: what else the machine does only adds to a time."""
    return float(np.quantile(seconds, 0.25))


@dataclass(slots=True)
class Samples:
    """Seconds by directions, blocks and bytes a block, of one link."""

    name: str
    block_bytes: int
    taken: dict[tuple[tuple[Direction, ...], int, int], list[float]] = field(default_factory=dict)

    def measure(self, timer: Timer, block_bytes: int, counts: Sequence[int], budget_s: float) -> None:
        """Rounds of all cells in turn until the budget is spent, at least three; the first warms up."""
        ways = _WAYS if block_bytes == self.block_bytes else (("write",),)
        end = time.perf_counter() + budget_s
        for turn in range(_MAX_ROUNDS):
            for count in counts:
                for way in ways:
                    seconds = timer(way, count)
                    if turn:
                        self.taken.setdefault((way, count, block_bytes), []).append(seconds)
            if turn >= _MIN_ROUNDS and time.perf_counter() > end:
                return

    def points(self, way: Direction, *, one_operation: bool) -> list[Point]:
        """Of one direction alone."""
        return [
            Point(1 if one_operation else count, count * size, typical(seconds))
            for (ways, count, size), seconds in self.taken.items()
            if ways == (way,)
        ]


class StoreTimer:
    """Loads and stores of a tier's store through `WorkerTransfers`, and a pool's blocks."""

    def __init__(self, transfers: WorkerTransfers, before: Callable[[], None] = lambda: None) -> None:
        self._transfers, self._before, self._turn = transfers, before, 0

    def __call__(self, directions: Sequence[Direction], count: int) -> float:
        """Blocks from 1 on are read, those behind them written; keys of a turn are removed at its end.

        What the turn before removed is gone, and `before` was called, when the clock starts.
        """
        self._turn += 1
        self._carry_out([[Copy(BlockHash(b"in order"), 0, 1, 1)]])
        loads = [Copy(self._key("read", n), 1, 0, 1 + n) for n in range(count)] if "read" in directions else []
        stores = [Copy(self._key("write", n), 0, 1, 1 + count + n) for n in range(count)]
        if loads:
            self._carry_out([[Copy(copy.key, 0, 1, copy.block)] for copy in loads])
        self._before()
        asked = [loads] if loads else []
        written = [[copy] for copy in stores] if "write" in directions else []
        start = time.perf_counter()
        self._carry_out(asked + written)
        seconds = time.perf_counter() - start
        for copy in [*loads, *(copies[0] for copies in written)]:
            self._transfers.remove(copy.key, 1)
        return seconds

    def _key(self, way: Direction, number: int) -> BlockHash:
        return BlockHash(f"{way} {self._turn} {number}".encode())

    def _carry_out(self, operations: Sequence[Sequence[Copy]]) -> None:
        for copies in operations:
            self._transfers.submit(copies)
        while self._transfers.num_pending:
            self._transfers.wait(None)
            for copy in self._transfers.finished():
                if copy.failed:
                    raise StoreFailed(copy.failed)


def measure_store(
    entry: Mapping[str, Any], name: str, make_pool: Callable[[int], KVPool], block_size: int, budget_s: float
) -> Samples:
    """The store of a tier, as a serve run uses it: see the module.

    Args:
        entry: of the tier, as a configuration has it; its number of blocks does not matter.
        make_pool: (tokens a block) -> a pool of `POOL_BLOCKS`.
        budget_s: seconds a block size, about; three are measured.

    Raises:
        ConfigError: a store of keys alone, or a `path` that cannot be used.
        StoreFailed: the store cannot be opened, or a copy failed.
    """
    samples: Samples | None = None
    for tokens in dict.fromkeys((block_size, max(1, block_size // _WIDER), block_size * _WIDER)):
        pool = make_pool(tokens)
        bytes_of = pool_bytes(pool)
        samples = samples or Samples(name, bytes_of.block_bytes)
        format = BlockFormat("measurement of links", pool.dtype, pool.layout, tokens, "counted", bytes_of.block_bytes)
        with _empty_place(entry) as (placed, forget):
            store = open_store({**placed, "num_blocks": POOL_BLOCKS + 1}, format, bytes_of)
            if not store.holds_kv:
                raise ConfigError(f"store {store.name} holds no K and V: it has no link to measure; leave it out")
            transfers = WorkerTransfers(bytes_of, [store], lambda: 0.0)
            try:
                samples.measure(StoreTimer(transfers, forget), bytes_of.block_bytes, COUNTS, budget_s)
            finally:
                transfers.close(drain=True)
    assert samples is not None
    return samples


@contextmanager
def _empty_place(entry: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Callable[[], None]]]:
    """The tier, in a folder of its own below its `path` if its store has one, and what makes its blocks be far away.

    Files are read from their disk and not from the page cache, memory is not in the processor's caches.
    """
    others = np.zeros(2 * last_level_cache_bytes("cpu"), dtype=np.uint8)

    def flush() -> None:
        others.fill(1)

    path = entry["store"].get("path")
    if path is None:
        yield entry, flush
        return
    parent = Path(str(path)).expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="measured-", dir=parent)
    except OSError as error:
        raise ConfigError(f"{parent} cannot be used: {error.strerror}; choose another path") from error

    def forget() -> None:
        drop_page_cache(Path(name))
        flush()

    with folder as name:
        yield {**entry, "store": {**entry["store"], "path": name}}, forget


def drop_page_cache(folder: Path) -> None:
    """Write the files below `folder` to their disk and forget them in memory, so that a read comes from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_copies(device: str, block_bytes: int, budget_s: float) -> Iterator[Samples]:
    """Plain copies between a CUDA device and pinned, then pageable memory."""
    kinds: tuple[Memory, ...] = ("pinned", "pageable")
    for memory in kinds:
        copies, samples = DeviceCopies(device, max(COUNTS) * block_bytes, memory), Samples(memory, block_bytes)

        def timer(ways: Sequence[Direction], count: int, copies: DeviceCopies = copies) -> float:
            return copies.seconds(ways, count * block_bytes)

        samples.measure(timer, block_bytes, COUNTS, budget_s)
        yield samples
