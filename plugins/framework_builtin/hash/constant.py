"""Every block has the same name."""

from __future__ import annotations

from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, TokenArray

_NAME = BlockHash(b"constant")


class Constant(HashScheme):
    """The worst scheme there can be, for fault injection: an allocator that still never serves wrong KV verifies
    content and ancestry. O(1) a block.
    """

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        return _NAME

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        return _NAME

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        return [_NAME] * (len(tokens) // block_size)
