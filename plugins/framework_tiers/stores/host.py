"""Blocks in the host's memory, and keys without blocks."""

from __future__ import annotations

import numpy as np

from framework.errors import StoreFailed
from framework.types import BlockHash
from framework_tiers.store import Allocate, BlockFormat, Store


class Host(Store):
    """Memory of this process, taken as a whole when the run begins: pinned where the pool is on a CUDA device.

    Copies between a CUDA pool and this memory need no buffer between; see `Store.reserve` and `Store.view`.
    """

    def __init__(self) -> None:
        self._allocate: Allocate = _plain

    def use_memory(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        size = num_blocks * format.block_bytes
        try:
            memory = self._allocate(size)
        except (MemoryError, ValueError) as error:
            raise StoreFailed(
                f"the host has no {size} bytes for {num_blocks} blocks of {format.block_bytes}; lower num_blocks"
            ) from error
        self._memory = np.frombuffer(memory, dtype=np.uint8).reshape(num_blocks, format.block_bytes)
        self._rows: dict[BlockHash, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))

    def write(self, key: BlockHash, data: memoryview) -> None:
        self.reserve(key)[:] = data

    def reserve(self, key: BlockHash) -> memoryview:
        row = self._rows.get(key)
        if row is None:
            if not self._free:
                raise StoreFailed(f"all {len(self._rows)} blocks of host memory are taken; remove one first")
            row = self._rows[key] = self._free.pop()
        return self._place(row)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        place = self.view(key)
        if place is None:
            return False
        into[:] = place
        return True

    def view(self, key: BlockHash) -> memoryview | None:
        row = self._rows.get(key)
        return None if row is None else self._place(row)

    def remove(self, key: BlockHash) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._free.append(row)

    def _place(self, row: int) -> memoryview:
        place: memoryview = self._memory[row].data
        return place

    def close(self) -> None:
        self._rows.clear()
        del self._memory


def _plain(num_bytes: int) -> memoryview:
    memory: memoryview = np.empty(num_bytes, dtype=np.uint8).data
    return memory


class Null(Store):
    """Keys only, nothing is kept: for replays."""

    holds_kv = False

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        pass

    def write(self, key: BlockHash, data: memoryview) -> None:
        pass

    def read(self, key: BlockHash, into: memoryview) -> bool:
        return False

    def remove(self, key: BlockHash) -> None:
        pass
