"""The vectorised polynomial equals plain integer arithmetic."""

from __future__ import annotations

import random

from hash_tokens import tokens

from framework.types import ROOT_NAMESPACE, Namespace
from framework_builtin.hash.polynomial import _BASE, _PRIME, Polynomial


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
