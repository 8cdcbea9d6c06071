"""Block names of each scheme: golden bytes, collisions, equal in one call or many."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import xxhash

from framework.errors import InvalidArgument
from framework.interfaces.hash import DigestScheme
from framework.types import ROOT_NAMESPACE, Namespace, TokenArray
from framework_builtin.hash.blake2b import Blake2b
from framework_builtin.hash.constant import Constant
from framework_builtin.hash.polynomial import _BASE, _PRIME, Polynomial
from framework_builtin.hash.python import PythonHash
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.truncated import Truncated
from framework_builtin.hash.xxh3_128 import Xxh3_128
from framework_builtin.hash.xxh64 import Xxh64

DIGESTS = {
    Sha256: lambda data: hashlib.sha256(data).digest(),
    Xxh64: lambda data: xxhash.xxh64(data).digest(),
    Xxh3_128: lambda data: xxhash.xxh3_128(data).digest(),
    Blake2b: lambda data: hashlib.blake2b(data, digest_size=32, person=b"kvcache-block").digest(),
}
NS = Namespace("m", "", "salt")


def tokens(*ids: int) -> TokenArray:
    return np.array(ids, dtype=np.int32)


@pytest.mark.parametrize("scheme", DIGESTS)
def test_names_are_the_digest_of_tag_parent_and_tokens(scheme: type[DigestScheme]) -> None:
    digest, made = DIGESTS[scheme], scheme()
    root = digest(b"\x00kvcache-framework/root/1\x00" + (4).to_bytes(8, "little") + NS.encode())
    assert made.root(NS, 4) == root
    tokens = np.arange(10, dtype=np.int32)
    first = digest(b"\x01" + root + tokens[:4].tobytes())
    second = digest(b"\x01" + first + tokens[4:8].tobytes())
    assert made.blocks(made.root(NS, 4), tokens, 4) == [first, second]


def test_cryptographic_digests_alone_are_taken_at_their_word() -> None:
    assert {scheme for scheme in DIGESTS if scheme.collision_resistant} == {Sha256, Blake2b}


def test_a_constant_scheme_names_everything_alike() -> None:
    scheme = Constant()
    root = scheme.root(Namespace(salt="s"), 4)
    assert set(scheme.blocks(root, tokens(*range(40)), 4)) == {root}


def test_the_vectorised_polynomial_equals_plain_integer_arithmetic() -> None:
    rng, scheme = random.Random(0), Polynomial()
    for block_size in (1, 2, 16, 64):
        ids = [rng.choice([0, 1, 2**31 - 1, rng.randrange(2**31)]) for _ in range(5 * block_size)]
        root = scheme.root(ROOT_NAMESPACE, block_size)
        value, expected = int.from_bytes(root, "little"), []
        for start in range(0, len(ids), block_size):
            inner = 0
            for token in ids[start : start + block_size]:
                inner = (inner * _BASE + token + 1) % _PRIME
            value = (value * pow(_BASE, block_size, _PRIME) + inner) % _PRIME
            expected.append(value.to_bytes(8, "little"))
        assert scheme.blocks(root, tokens(*ids), block_size) == expected, block_size


def test_small_blocks_and_namespaces_have_polynomials_of_their_own() -> None:
    scheme = Polynomial()
    roots = {scheme.root(Namespace(salt=salt), size) for salt in ("", "a", "b", "ab") for size in (1, 2, 16)}
    assert len(roots) == 12
    names = {scheme.block(root, tokens(a, b)) for root in roots for a in range(20) for b in range(20)}
    assert len(names) == 12 * 400


def test_python_s_hash_has_the_published_collision() -> None:
    scheme = PythonHash()
    assert not scheme.collision_resistant
    # hash(-1) == hash(-2), so two parents that differ only there give one child
    one, two = ((-1).to_bytes(8, "little", signed=True), (-2).to_bytes(8, "little", signed=True))
    assert scheme.block(one, tokens(1, 2)) == scheme.block(two, tokens(1, 2))


@pytest.mark.parametrize(("bits", "size"), [(1, 1), (8, 1), (9, 2), (16, 2), (256, 32)])
def test_truncated_keeps_so_many_bits(bits: int, size: int) -> None:
    scheme = Truncated(bits=bits)
    names = {scheme.block(scheme.root(ROOT_NAMESPACE, 1), tokens(i)) for i in range(2_000)}
    assert {len(name) for name in names} == {size}
    spare = 8 * size - bits
    assert all(int.from_bytes(name, "big") % 2**spare == 0 for name in names)
    if bits <= 9:
        assert 0.95 * 2**bits < len(names) <= 2**bits, "two thousand blocks meet nearly every name"


def test_truncated_takes_any_digest_and_refuses_what_it_cannot_cut() -> None:
    assert Truncated(bits=64, of="blake2b").digest(b"x") == hashlib.blake2b(b"x").digest()[:8]
    assert Truncated(bits=256).digest(b"x") == hashlib.sha256(b"x").digest()
    for options in ({"bits": 0}, {"bits": 257}, {"bits": 200, "of": "md5"}, {"of": "crc32"}, {"of": "shake_128"}):
        with pytest.raises(InvalidArgument, match="truncated"):
            Truncated(**options)  # type: ignore[arg-type]
