"""Base class of indexes from content to block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from framework.paged.pool import BlockPool
from framework.types import BlockHash


class PrefixIndex(ABC):
    """Finds published blocks, holds at most one for a content, and counts each one's resident children.

    `anchor` names a namespace: an integer below 0. `data` are tokens as int32 bytes. A parent of 0 is the root. All
    calls are O(1) a block; removal is amortised.

    Attributes:
        compares_tokens: whether it needs `data` to tell contents apart; else that may be empty.
        collisions: contents that were not published because their hash is also that of other content.
    """

    compares_tokens: ClassVar[bool] = True

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.collisions = 0

    @abstractmethod
    def find(self, anchor: int, hashes: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        """The blocks of the leading contents, at most `limit`, up to the first that is not published. Pure."""

    @abstractmethod
    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        """Publish `block`. Returns it; or the block that holds this content already; or 0 on a collision.

        Only in the first case anything changed (and `collisions` in the last).
        """

    def insert_chain(
        self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """`insert` each block below the holder of the one before, up to the first collision. Sets `pool.block_hash`.

        Returns:
            The holder of each content, and the places in `blocks` of those newly published.
        """
        step, hash_of = 4 * self._pool.block_size, self._pool.block_hash
        holders: list[int] = []
        new: list[int] = []
        for at, (block_hash, block) in enumerate(zip(hashes, blocks, strict=True)):
            published = hash_of[block] is not None
            parent = self.insert(anchor, parent, block_hash, data[at * step : (at + 1) * step], block)
            if not parent:
                break
            holders.append(parent)
            if parent == block and not published:
                hash_of[block] = block_hash
                new.append(at)
        return holders, new

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        """Of these contents below `parent`, how many leading ones no block holds and `insert` would take. Pure.

        0 of an index that cannot say: nothing is then published before it is computed.
        """
        return 0

    @abstractmethod
    def parent(self, block: int) -> int:
        """The resident parent of a published block, 0 if it is the root or gone."""

    @abstractmethod
    def remove(self, block: int) -> None:
        """Take a published block out. Its children stay and are found again when it is published again."""

    def remove_all(self, blocks: Sequence[int]) -> None:
        """`remove` each of these and clear its `block_hash` in the pool."""
        hash_of, remove = self._pool.block_hash, self.remove
        for block in blocks:
            remove(block)
            hash_of[block] = None

    @abstractmethod
    def clear(self) -> None:
        """Forget everything; `collisions` stays."""

    @abstractmethod
    def audit(self) -> list[str]:
        """What is wrong, recomputed from nothing. One line a fault, empty when all is well."""
