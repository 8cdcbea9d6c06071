"""BLAKE2b is the library's."""

from __future__ import annotations

import hashlib

from framework_builtin.hash.blake2b import Blake2b


def test_blake2b_is_the_library_s() -> None:
    scheme = Blake2b()
    assert scheme.collision_resistant
    assert scheme.digest(b"x") == hashlib.blake2b(b"x", digest_size=32, person=b"kvcache-block").digest()
