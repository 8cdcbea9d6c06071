"""SHA-256 block names: nobody can find a collision."""

from __future__ import annotations

import hashlib

from framework.interfaces.hash import DigestScheme


class Sha256(DigestScheme):
    """SHA-256 (FIPS 180-4), 32 bytes: collision resistant, so a hit needs no comparison of tokens. The default."""

    collision_resistant = True

    def digest(self, data: bytes) -> bytes:
        return hashlib.sha256(data, usedforsecurity=False).digest()
