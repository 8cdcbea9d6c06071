"""Where Zipped keeps blocks."""

from __future__ import annotations

import zlib

from framework.errors import ConfigError, StoreFailed
from framework.types import BlockHash
from framework_tiers.store import BlockFormat, Store


class Zipped(Store):
    """Memory of this process, compressed."""

    def __init__(self, *, level: int = 1) -> None:
        if not 0 <= level <= 9:
            raise ConfigError("level must be 0 to 9")
        self.level = level
        self._blocks: dict[BlockHash, bytes] = {}

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self._num_blocks = num_blocks

    def write(self, key: BlockHash, data: memoryview) -> None:
        if key not in self._blocks and len(self._blocks) >= self._num_blocks:
            raise StoreFailed(f"it holds {self._num_blocks} blocks already; remove one first")
        self._blocks[key] = zlib.compress(data, self.level)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        packed = self._blocks.get(key)
        if packed is None:
            return False
        into[:] = zlib.decompress(packed)
        return True

    def remove(self, key: BlockHash) -> None:
        self._blocks.pop(key, None)
