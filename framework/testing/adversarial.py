"""Plugins that break the rules on purpose: what an allocator must contain, and what a kit must catch.

Nothing here is for use. Each class breaks one rule and says which in its docstring.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import DigestScheme
from framework.testing.oracles.eviction import SlowLru, SlowPolicy
from framework.types import BlockHash, BlockId, Namespace, TokenArray

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


COLLIDING = (Constant, Truncated, Fickle)


class _Odd(ReferenceHash):
    """Sound, but for one method that a subclass replaces."""

    collision_resistant = False

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        return [self.odd(name) for name in super().blocks(parent, tokens, block_size)]

    def odd(self, name: BlockHash) -> Any:
        """What is returned in place of `name`."""
        return name


class NamesAreText(_Odd):
    """Breaks: names are bytes."""

    def odd(self, name: BlockHash) -> Any:
        return name.hex()


class NamesAreNumbers(_Odd):
    """Breaks: names are bytes. A signed number may equal a sentinel."""

    def odd(self, name: BlockHash) -> Any:
        return int.from_bytes(name[:8], "little", signed=True)


class NamesAreNone(_Odd):
    """Breaks: names are bytes."""

    def odd(self, name: BlockHash) -> Any:
        return None


class OneNameShort(_Odd):
    """Breaks: one name for each full block."""

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        return super().blocks(parent, tokens, block_size)[:-1]


class RaisesWhenNaming(_Odd):
    """Breaks: naming a block does not fail. Raises from the k-th block on."""

    def __init__(self, after: int = 0) -> None:
        self.left = after

    def odd(self, name: BlockHash) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("this scheme fails on purpose")
        return name


class RaisesAtRoot(ReferenceHash):
    """Breaks: naming a root does not fail."""

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        raise RuntimeError("this scheme fails on purpose")


class MutatesTokens(ReferenceHash):
    """Breaks: tokens stay the caller's."""

    def blocks(self, parent: BlockHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
        names = super().blocks(parent, tokens, block_size)
        tokens[:] = 0
        return names


class ProcessHash(DigestScheme):
    """Breaks: the same name in every process. Python's own hash of bytes is seeded per process."""

    def digest(self, data: bytes) -> bytes:
        return hash(data).to_bytes(8, "little", signed=True)


def bad_names() -> Iterator[Any]:
    """Schemes whose names no allocator may accept."""
    yield from (NamesAreText(), NamesAreNumbers(), NamesAreNone(), OneNameShort(), RaisesWhenNaming(),
                RaisesWhenNaming(1), RaisesAtRoot(), MutatesTokens())  # fmt: skip


# Policies


class MostRecent(SlowLru):
    """Evicts the most recently used block. Legal, and the worst order for most traces."""

    def rank(self, block: BlockId) -> Any:
        return -self.blocks.last_access[block], -self.blocks.depth[block], block


class _Wrong(SlowLru):
    """LRU that answers every question with something else."""

    def victim(self, now: float) -> Any:
        return self.wrong(super().victim(now))

    def wrong(self, right: BlockId) -> Any:
        """What is returned in place of the right victim."""
        return right


class NamesPinned(_Wrong):
    """Breaks: a victim is a candidate. Names a published block that a request is using."""

    def attach(self, blocks: Any) -> None:
        super().attach(blocks)
        self.in_use: list[BlockId] = []

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self.in_use += blocks

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        super().release(blocks, now)
        self.in_use = [block for block in self.in_use if block not in blocks]

    def wrong(self, right: BlockId) -> Any:
        return self.in_use[0] if self.in_use else BlockId(0)


class NamesNull(_Wrong):
    """Breaks: block 0 is never evicted."""

    def wrong(self, right: BlockId) -> Any:
        return 0


class NamesUnknown(_Wrong):
    """Breaks: a victim is a block of this pool."""

    def wrong(self, right: BlockId) -> Any:
        return 10**9


class NamesNegative(_Wrong):
    """Breaks: a victim is a block of this pool. Python would index from the end."""

    def wrong(self, right: BlockId) -> Any:
        return -1


class NamesFloat(_Wrong):
    """Breaks: a victim is an int."""

    def wrong(self, right: BlockId) -> Any:
        return float(right)


class NamesBool(_Wrong):
    """Breaks: a victim is an int, and True is not block 1."""

    def wrong(self, right: BlockId) -> Any:
        return True


class NamesNone(_Wrong):
    """Breaks: a policy with candidates names one."""

    def wrong(self, right: BlockId) -> Any:
        return None


class NamesNobody(_Wrong):
    """Breaks: NoCandidate is raised only when there is none."""

    def wrong(self, right: BlockId) -> Any:
        raise NoCandidate("this policy refuses on purpose")


class RaisesOnVictim(_Wrong):
    """Breaks: a choice does not fail."""

    def wrong(self, right: BlockId) -> Any:
        raise RuntimeError("this policy fails on purpose")


def bad_victims() -> Iterator[EvictionPolicy]:
    """Policies whose choice an allocator must refuse, by name."""
    yield from (NamesPinned(), NamesNull(), NamesUnknown(), NamesNegative(), NamesFloat(), NamesNone(), NamesBool(),
                NamesNobody(), RaisesOnVictim())  # fmt: skip


class RaisesInHook(SlowLru):
    """Breaks: a callback does not fail. Raises in the k-th call of one hook."""

    def __init__(self, hook: str, after: int = 0) -> None:
        self.hook, self.left = hook, after

    def _count(self, hook: str) -> None:
        if hook == self.hook:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError(f"{hook} fails on purpose")

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._count("admit")

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._count("hit")

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._count("pin")
        super().pin(blocks, now)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._count("release")
        super().release(blocks, now)

    def evicted(self, block: BlockId, now: float) -> None:
        self._count("evicted")
        super().evicted(block, now)


class ForgetsPin(SlowLru):
    """Breaks: a pinned block is no candidate."""

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        pass


class ForgetsRelease(SlowLru):
    """Breaks: every released block is a candidate. Loses the last one of each call."""

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        super().release(blocks[:-1], now)


class ForgetsEvicted(SlowLru):
    """Breaks: an evicted block is no candidate."""

    def evicted(self, block: BlockId, now: float) -> None:
        pass


class VictimRemoves(SlowLru):
    """Breaks: asking for a victim removes nothing."""

    def victim(self, now: float) -> BlockId:
        block = super().victim(now)
        self.candidates.discard(block)
        return block


class Wavers(SlowLru):
    """Breaks: asked twice, a policy answers the same."""

    def attach(self, blocks: Any) -> None:
        super().attach(blocks)
        self.asked = 0

    def victim(self, now: float) -> BlockId:
        if not self.candidates:
            raise NoCandidate("Wavers holds no candidate")
        self.asked += 1
        return sorted(self.candidates)[self.asked % len(self.candidates)]


class Unseeded(SlowPolicy):
    """Breaks: deterministic given its constructor's seed."""

    def rank(self, block: BlockId) -> Any:
        return self.ranks.setdefault(block, os.urandom(8))

    def attach(self, blocks: Any) -> None:
        super().attach(blocks)
        self.ranks: dict[BlockId, bytes] = {}


class MutatesLists(SlowLru):
    """Breaks: the lists it is handed are not its own."""

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        super().release(blocks, now)
        blocks.clear()  # type: ignore[attr-defined]


class KeepsLists(SlowLru):
    """Breaks: the lists it is handed are not its own. Reads them after the call."""

    def attach(self, blocks: Any) -> None:
        super().attach(blocks)
        self.kept: list[Sequence[BlockId]] = []

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self.kept.append(blocks)

    def _settle(self) -> None:
        for blocks in self.kept:
            self.candidates |= set(blocks)
        self.kept = []

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._settle()
        super().pin(blocks, now)

    def victim(self, now: float) -> BlockId:
        self._settle()
        return super().victim(now)

    def evicted(self, block: BlockId, now: float) -> None:
        self._settle()
        super().evicted(block, now)


class EmptyNone(SlowLru):
    """Breaks: without a candidate NoCandidate is raised, None is not returned."""

    def victim(self, now: float) -> Any:
        return super().victim(now) if self.candidates else None


class WritesFacts(SlowLru):
    """Breaks: facts are read, not written."""

    def victim(self, now: float) -> BlockId:
        block = super().victim(now)
        self.blocks.last_access[block] = 0  # type: ignore[index]
        return block
