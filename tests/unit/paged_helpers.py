"""Small allocators and short calls for the tests of the paged toolkit."""

from __future__ import annotations

import random
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
IMAGE = 7  # the placeholder


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


def prompt_with_contents(draw: random.Random) -> tuple[list[int], Namespace]:
    """A prompt of a common text, with images of 3 or 6 placeholders and of one name a length at random places."""
    tokens, contents = list[int](), list[tuple[int, int, str]]()
    while len(tokens) < 24:
        if draw.random() < 0.4:
            length, name = draw.choice(((3, "cat"), (6, "dog"), (3, "cow")))
            contents.append((len(tokens), len(tokens) + length, name))
            tokens += [IMAGE] * length
        else:
            tokens.append(draw.choice((1, 1, 1, IMAGE)))
    return tokens, Namespace(adapter=draw.choice(("", "", "a")), salt=draw.choice(("", "", "s")), contents=(*contents,))


def shared(one: list[Any], other: list[Any]) -> int:
    """Leading entries that are equal."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class ArrivalWatch(Lru):
    """LRU that notes `now` beside the arrival of the request that last used the block."""

    needs_requests = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float | None]] = []

    def release(self, blocks: Any, now: float) -> None:
        self.seen.append((now, self.blocks.last_request[blocks[0]].arrival))
        super().release(blocks, now)
