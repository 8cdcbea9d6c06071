"""xxHash64 block names: small, and easy to collide on purpose."""

from __future__ import annotations

import xxhash

from framework.interfaces.hash import DigestScheme


class Xxh64(DigestScheme):
    """xxHash64, 8 bytes: fast; collisions can be computed, so hits are verified. Used by nano-vllm's BlockManager."""

    def digest(self, data: bytes) -> bytes:
        return xxhash.xxh64_digest(data)
