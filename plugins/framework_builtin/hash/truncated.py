"""A few bits of a good hash: collisions as often as wanted."""

from __future__ import annotations

import hashlib

from framework.errors import InvalidArgument
from framework.interfaces.hash import DigestScheme


class Truncated(DigestScheme):
    """The first `bits` bits of a digest, for fault injection: two blocks collide with probability 2^-bits.

    The chain runs through the short names, so a collision also makes all descendants collide, as it would for a
    weak hash in use.

    Args:
        bits: 1 to 256.
        of: digest that is cut, any of hashlib's with at least `bits` bits: sha256, blake2b, md5, ...
    """

    def __init__(self, bits: int = 8, of: str = "sha256") -> None:
        if of not in hashlib.algorithms_guaranteed or of.startswith("shake"):
            raise InvalidArgument(f"truncated.of must be a digest of hashlib such as sha256 or blake2b, found {of!r}")
        size = 8 * hashlib.new(of, usedforsecurity=False).digest_size
        if not 1 <= bits <= min(256, size):
            raise InvalidArgument(f"truncated.bits must be 1 to {min(256, size)} for {of}, found {bits}")
        self._bits, self._of = bits, of

    def digest(self, data: bytes) -> bytes:
        digest = hashlib.new(self._of, data, usedforsecurity=False).digest()
        size = (self._bits + 7) // 8
        spare = 8 * size - self._bits
        return (int.from_bytes(digest[:size], "big") >> spare << spare).to_bytes(size, "big")
