"""Block names: golden bytes, equal in one call or many, and in every process."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import xxhash

from framework.interfaces.hash import DigestScheme
from framework.types import Namespace
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh3_128 import Xxh3_128
from framework_builtin.hash.xxh64 import Xxh64

SCHEMES = [Sha256, Xxh64, Xxh3_128]
DIGESTS = {
    Sha256: lambda data: hashlib.sha256(data).digest(),
    Xxh64: lambda data: xxhash.xxh64(data).digest(),
    Xxh3_128: lambda data: xxhash.xxh3_128(data).digest(),
}
NS = Namespace("m", "", "salt")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_names_are_the_digest_of_tag_parent_and_tokens(scheme: type[DigestScheme]) -> None:
    digest, made = DIGESTS[scheme], scheme()
    root = digest(b"\x00kvcache-framework/root/1\x00" + (4).to_bytes(8, "little") + NS.encode())
    assert made.root(NS, 4) == root
    tokens = np.arange(10, dtype=np.int32)
    first = digest(b"\x01" + root + tokens[:4].tobytes())
    second = digest(b"\x01" + first + tokens[4:8].tobytes())
    assert made.blocks(made.root(NS, 4), tokens, 4) == [first, second]


def test_only_sha256_is_taken_at_its_word() -> None:
    assert [scheme.collision_resistant for scheme in SCHEMES] == [True, False, False]
