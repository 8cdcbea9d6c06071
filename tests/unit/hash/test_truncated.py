"""Truncated keeps so many bits of any digest."""

from __future__ import annotations

import hashlib

import pytest
from hash_tokens import tokens

from framework.errors import InvalidArgument
from framework.types import ROOT_NAMESPACE
from framework_builtin.hash.truncated import Truncated


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
