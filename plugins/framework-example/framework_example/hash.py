"""Name blocks so that only who knows the secret can predict a name."""

from __future__ import annotations

import hashlib

from framework.interfaces.hash import DigestScheme


class Keyed(DigestScheme):
    """BLAKE2b with a secret key, 32 bytes: collision resistant, and not to be predicted without the secret.

    Predictable names let one tenant probe what another has cached (CVE-2025-25183). Processes that share a cache must
    share the secret.

    Args:
        secret: any text; only its SHA-256 is used.
    """

    collision_resistant = True

    def __init__(self, *, secret: str = "") -> None:
        self._key = hashlib.sha256(secret.encode()).digest()

    def digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=32, key=self._key).digest()
