"""Keys without K and V."""

from __future__ import annotations

from framework.types import BlockHash
from framework_tiers.store import BlockFormat, Store


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
