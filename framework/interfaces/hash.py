"""The extension point for hash schemes: the hash of a block, from its tokens and its parent's hash."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from framework.types import BlockHash, Namespace, TokenArray

_ROOT_TAG = b"\x00kvcache-framework/root/1\x00"
BLOCK_TAG = b"\x01"
"""What the preimage of a DigestScheme's block begins with."""


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
    """The short base class: any digest of bytes becomes a chained, injective, domain-separated block hash.

    Root preimage: tag, block size, namespace (length-prefixed fields). Block preimage: tag, parent digest, tokens as
    little-endian int32. Digests have one fixed length, so no two different inputs share a preimage.
    """

    @abstractmethod
    def digest(self, data: bytes) -> bytes:
        """A fixed-length digest of `data`: a pure function of its bytes."""

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        return BlockHash(self.digest(_ROOT_TAG + block_size.to_bytes(8, "little") + namespace.encode()))

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        return BlockHash(self.digest(BLOCK_TAG + parent + little_endian(tokens)))

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        digest, name = self.digest, bytes(parent)
        if len(tokens) == block_size:
            return [BlockHash(digest(BLOCK_TAG + name + little_endian(tokens)))]
        names: list[Any] = []  # of BlockHash; calling the NewType would cost as much as making the preimage
        for content in contents(tokens, block_size):
            name = digest(BLOCK_TAG + name + content)
            names.append(name)
        return names


def contents(tokens: TokenArray, block_size: int) -> list[bytes]:
    """Each full block of `tokens` (n,) int32 as little-endian bytes."""
    if len(tokens) < block_size:
        return []
    data, step = little_endian(tokens), 4 * block_size
    blocks: list[bytes] = np.frombuffer(data, dtype=_bytes_of(step), count=len(data) // step).tolist()
    return blocks


@lru_cache(maxsize=16)
def _bytes_of(step: int) -> np.dtype[np.void]:
    return np.dtype((np.void, step))


def little_endian(tokens: TokenArray) -> bytes:
    """The tokens, int32, as bytes that are the same on every machine."""
    return tokens.tobytes() if sys.byteorder == "little" else tokens.astype("<i4").tobytes()
