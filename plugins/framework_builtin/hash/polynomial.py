"""A polynomial over a 61-bit prime field, all blocks of a prompt in a few NumPy calls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, TokenArray

_PRIME = 2**61 - 1
_BASE = 0x1B03738712FAD5C9 % _PRIME
_LOW = np.uint64(2**31 - 1)


class Polynomial(HashScheme):
    """name = (parent x B^S + sum of (token + 1) x B^(S-1-i)) mod 2^61 - 1, for blocks of S tokens.

    The inner sums of all blocks are one vectorised Horner scheme of S steps over (blocks,) arrays; the chain is one
    multiplication a block in Python. Linear and unkeyed, so collisions are easy to construct: the allocator verifies
    every hit. For honest text two of a million blocks share a name with probability 2e-7.
    Source: Karp and Rabin 1987. O(n) a call.
    """

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        value = block_size % _PRIME
        for byte in namespace.encode():
            value = (value * _BASE + byte + 1) % _PRIME
        return _encode(value)

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        return self.blocks(parent, tokens, len(tokens))[0]

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        count = len(tokens) // block_size
        columns = tokens[: count * block_size].reshape(count, block_size).T
        sums = np.zeros(count, dtype=np.uint64)
        for column in columns:
            sums = _reduce(_multiply(sums) + column.astype(np.uint64) + np.uint64(1))
        shift, value = pow(_BASE, block_size, _PRIME), int.from_bytes(parent, "little")
        names: list[BlockHash] = []
        for inner in sums.tolist():
            value = (value * shift + inner) % _PRIME
            names.append(_encode(value))
        return names


def _multiply(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """values x _BASE mod 2^61 - 1, up to a few times the prime; 64-bit halves never overflow."""
    base_high, base_low = np.uint64(_BASE >> 31), np.uint64(_BASE & (2**31 - 1))
    high, low = values >> np.uint64(31), values & _LOW
    middle = _reduce(high * base_low + low * base_high)
    # values x base = high x base_high x 2^62 + middle x 2^31 + low x base_low, and 2^62 = 2 mod 2^61 - 1
    shifted = (middle >> np.uint64(30)) + ((middle & np.uint64(2**30 - 1)) << np.uint64(31))
    return _reduce(_reduce(high * base_high) * np.uint64(2) + shifted) + _reduce(low * base_low)


def _reduce(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The residue mod 2^61 - 1, below it."""
    prime = np.uint64(_PRIME)
    values = (values >> np.uint64(61)) + (values & prime)
    return np.where(values >= prime, values - prime, values)


def _encode(value: int) -> BlockHash:
    return BlockHash(value.to_bytes(8, "little"))
