"""SHA-256 block names: nobody can find a collision."""

from __future__ import annotations

import hashlib
from typing import Any

from framework.interfaces.hash import BLOCK_TAG, DigestScheme, contents, little_endian
from framework.types import BlockHash, TokenArray


class Sha256(DigestScheme):
    """SHA-256 (FIPS 180-4), 32 bytes: collision resistant, so a hit needs no comparison of tokens. The default."""

    collision_resistant = True

    def digest(self, data: bytes) -> bytes:
        return hashlib.sha256(data, usedforsecurity=False).digest()

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        if type(self).digest is not Sha256.digest:
            return super().blocks(parent, tokens, block_size)
        if len(tokens) == block_size:
            data = BLOCK_TAG + parent + little_endian(tokens)
            return [BlockHash(hashlib.sha256(data, usedforsecurity=False).digest())]
        # Copying a hash object that has read the tag costs less than making one: no algorithm is looked up.
        begin = hashlib.sha256(BLOCK_TAG, usedforsecurity=False).copy
        name: bytes = parent
        names: list[Any] = []
        add = names.append
        for content in contents(tokens, block_size):
            hashed = begin()
            hashed.update(name + content)
            name = hashed.digest()
            add(name)
        return names
