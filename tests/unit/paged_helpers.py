"""Small allocators and short calls for the tests of the paged toolkit."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import DigestScheme
from framework.paged.allocator import PagedAllocator
from framework.types import Namespace, RequestFacts, RequestId, RequestInfo
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.eviction.lru import Lru
from framework_builtin.hash.sha256 import Sha256

NS = Namespace()


class ConstantHash(DigestScheme):
    """Every content has one name."""

    def digest(self, data: bytes) -> bytes:
        return b"same"


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def make(
    num_blocks: int = 8,
    block_size: int = 2,
    *,
    kind: type[PagedAllocator] = PrefixCowAllocator,
    hash: Any = None,
    eviction: EvictionPolicy | None = None,
    watermark: float = 0.0,
    **options: Any,
) -> PagedAllocator:
    return kind(
        num_blocks=num_blocks,
        block_size=block_size,
        hash=hash or Sha256(),
        eviction=eviction or Lru(),
        watermark=watermark,
        **options,
    )


def info(number: int, namespace: Namespace = NS, **more: Any) -> RequestInfo:
    return RequestInfo(id=RequestId(number), max_total_tokens=64, namespace=namespace, **more)


def admit(allocator: Any, number: int, prompt: Any, namespace: Namespace = NS, **more: Any) -> int:
    """Look up and allocate; returns the tokens hit."""
    hit = allocator.lookup(prompt, namespace)
    allocator.allocate(info(number, namespace, **more), prompt, hit)
    return hit.num_tokens


def serve(allocator: Any, number: int, prompt: Any, namespace: Namespace = NS, **more: Any) -> int:
    """A whole request: admit, write, commit, free; returns the tokens hit."""
    found = admit(allocator, number, prompt, namespace, **more)
    allocator.commit(RequestId(number), prompt)
    allocator.free(RequestId(number))
    return found


def table(allocator: Any, number: int) -> list[int]:
    return [int(block) for block in allocator.table(RequestId(number))]


class Watching(Lru):
    """LRU that writes down what it could read at each call."""

    needs_requests = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[tuple[int, int, RequestFacts]]]] = []

    def _note(self, call: str, blocks: Any) -> None:
        view = self.blocks
        self.seen.append((call, [(view.depth[b], view.parent[b], view.last_request[b]) for b in blocks]))

    def admit(self, blocks: Any, now: float) -> None:
        self._note("admit", blocks)
        super().admit(blocks, now)

    def hit(self, blocks: Any, now: float) -> None:
        self._note("hit", blocks)
        super().hit(blocks, now)

    def release(self, blocks: Any, now: float) -> None:
        self._note("release", blocks)
        super().release(blocks, now)

    def turns(self, call: str) -> list[int | None]:
        """The turns that the first block of each such call had."""
        return [facts[0][2].turn for name, facts in self.seen if name == call]
