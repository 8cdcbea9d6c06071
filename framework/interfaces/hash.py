"""How is the content of a block named?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from framework.types import BlockHash, Namespace, TokenArray

_ROOT_TAG = b"\x00kvcache-framework/root/1\x00"
_BLOCK_TAG = b"\x01"


class HashScheme(ABC):
    """Names block contents: equal (namespace, block size, prefix, tokens) give equal names, in every process.

    Unequal contents may collide, unless `collision_resistant`: an allocator then compares tokens and ancestry on
    every hit, so a collision costs a miss and never serves wrong KV. A scheme is stateless and deterministic.
    """

    collision_resistant: ClassVar[bool] = False
    """True only for hashes nobody can find a collision of (SHA-256): allocators then skip the verification."""

    @abstractmethod
    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        """The parent of every first block: mixes in the namespace and `block_size` (tokens), injectively."""

    @abstractmethod
    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        """The name of one full block: `tokens` (block_size,) int32, after the prefix that `parent` names."""

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        """Names all full blocks of `tokens` (n,) int32, chained: n // block_size of them. O(n).

        Equal to calling `block` once a block; override it where one call can do better.
        """
        names: list[BlockHash] = []
        for start in range(0, len(tokens) - block_size + 1, block_size):
            parent = self.block(parent, tokens[start : start + block_size])
            names.append(parent)
        return names


class DigestScheme(HashScheme):
    """The easy rung: any digest of bytes becomes a chained, injective, domain-separated block hash.

    Root preimage: tag, block size, namespace (length-prefixed fields). Block preimage: tag, parent digest, tokens as
    little-endian int32. Digests have one fixed length, so no two different inputs share a preimage.
    """

    @abstractmethod
    def digest(self, data: bytes) -> bytes:
        """A fixed-length digest of `data`: a pure function of its bytes."""

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        return BlockHash(self.digest(_ROOT_TAG + block_size.to_bytes(8, "little") + namespace.encode()))

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        return BlockHash(self.digest(_BLOCK_TAG + parent + tokens.astype("<i4", copy=False).tobytes()))

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        data = tokens.astype("<i4", copy=False).tobytes()
        step, digest, name = 4 * block_size, self.digest, bytes(parent)
        names: list[BlockHash] = []
        for start in range(0, len(data) - step + 1, step):
            name = digest(_BLOCK_TAG + name + data[start : start + step])
            names.append(BlockHash(name))
        return names
