"""Blocks in the host's memory."""

from __future__ import annotations

import numpy as np

from framework.errors import StoreFailed
from framework.interfaces.store import BlockFormat, Store
from framework.types import BlockHash


class Host(Store):
    """Plain memory of this process, taken as a whole when the run begins."""

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        size = num_blocks * format.block_bytes
        try:
            self._memory = np.empty((num_blocks, format.block_bytes), dtype=np.uint8)
        except (MemoryError, ValueError) as error:
            raise StoreFailed(
                f"the host has no {size} bytes for {num_blocks} blocks of {format.block_bytes}; lower num_blocks"
            ) from error
        self._rows: dict[BlockHash, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))

    def write(self, key: BlockHash, data: memoryview) -> None:
        row = self._rows.get(key)
        if row is None:
            if not self._free:
                raise StoreFailed(f"all {len(self._rows)} blocks of host memory are taken; remove one first")
            row = self._rows[key] = self._free.pop()
        self._memory[row] = data

    def read(self, key: BlockHash, into: memoryview) -> bool:
        row = self._rows.get(key)
        if row is None:
            return False
        into[:] = self._memory[row].data
        return True

    def remove(self, key: BlockHash) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._free.append(row)

    def close(self) -> None:
        self._rows.clear()
        del self._memory
