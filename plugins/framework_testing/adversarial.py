"""Plugins that break the rules on purpose: what an allocator must refuse, and what a kit must catch.

Nothing here is for use. Each class breaks one rule and says which in its docstring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import DigestScheme
from framework.types import BlockHash, BlockId, TokenArray
from framework_testing.oracles.eviction import SlowLru

# Schemes: the first is sound, the next three are legal but weak, the rest break a rule


class ReferenceHash(DigestScheme):
    """SHA-256: sound, and what the kits use when the scheme is not the question."""

    collision_resistant = True

    def digest(self, data: bytes) -> bytes:
        return hashlib.sha256(data).digest()


class Constant(DigestScheme):
    """Every content has the same name. Legal: an allocator must compare content and ancestry."""

    def digest(self, data: bytes) -> bytes:
        return b"\x00"


class Truncated(DigestScheme):
    """The first `bits` bits of SHA-256. Legal: collisions are common."""

    def __init__(self, bits: int = 8) -> None:
        self.bits = bits

    def digest(self, data: bytes) -> bytes:
        return bytes([hashlib.sha256(data).digest()[0] >> (8 - self.bits)])


class Fickle(DigestScheme):
    """Breaks: a pure function of its input. Hits may vanish, but may never lie."""

    def __init__(self) -> None:
        self.calls = 0

    def digest(self, data: bytes) -> bytes:
        self.calls += 1
        return hashlib.sha256(data + self.calls.to_bytes(8, "little")).digest()[:1]


def _naming(name: str, names: Callable[[list[BlockHash]], list[Any]]) -> type[ReferenceHash]:
    """A sound scheme, but for what it returns in place of a prompt's names."""

    def blocks(self: ReferenceHash, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[Any]:
        return names(ReferenceHash.blocks(self, parent, tokens, block_size))

    return type(name, (ReferenceHash,), {"collision_resistant": False, "blocks": blocks})


BAD_NAMES = (
    _naming("NamesAreText", lambda names: [name.hex() for name in names]),
    _naming("NamesAreNumbers", lambda names: [int.from_bytes(name[:8], "little") - 2**63 for name in names]),
    _naming("NamesAreNone", lambda names: [None] * len(names)),
    _naming("OneNameShort", lambda names: names[:-1]),
)
"""Schemes whose names no allocator may accept."""

# Policies


class MostRecent(SlowLru):
    """Evicts the most recently used block. Legal, and the worst order for most traces."""

    def rank(self, block: BlockId) -> Any:
        return -self.blocks.last_access[block], -self.blocks.depth[block], block


class NamesPinned(SlowLru):
    """Breaks: a victim is a candidate. Names a published block that a request is using."""

    def attach(self, blocks: Any) -> None:
        super().attach(blocks)
        self.in_use: list[BlockId] = []

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self.in_use += blocks

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        super().release(blocks, now)
        self.in_use = [block for block in self.in_use if block not in blocks]

    def victim(self, now: float) -> BlockId:
        super().victim(now)
        return self.in_use[0] if self.in_use else BlockId(0)


def _answering(name: str, answer: Callable[[BlockId], Any]) -> type[SlowLru]:
    """LRU that gives this answer in place of the right victim."""
    return type(name, (SlowLru,), {"victim": lambda self, now: answer(SlowLru.victim(self, now))})


def _refuses(right: BlockId) -> BlockId:
    raise NoCandidate("this policy refuses on purpose")


BAD_VICTIMS: tuple[type[EvictionPolicy], ...] = (
    NamesPinned,
    _answering("NamesNull", lambda right: 0),
    _answering("NamesUnknown", lambda right: 10**9),
    _answering("NamesNegative", lambda right: -1),  # Python would index from the end
    _answering("NamesFloat", float),
    _answering("NamesNone", lambda right: None),
    _answering("NamesBool", lambda right: True),  # which is not block 1
    _answering("NamesNobody", _refuses),
)
"""Policies whose choice an allocator must refuse, by name."""
