"""States, references and facts of blocks, as columns; the last request of each is one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from framework.interfaces.eviction import BlockView, ComputedColumn, ConstantColumn
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestFacts, RequestInfo

_Fact = TypeVar("_Fact")
MANY = 16
"""Blocks from which on NumPy's overhead a call is less than a loop's."""

_INT32, _INT64, _INTP = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.intp)


class BlockPool:
    """What is known of `num_blocks` blocks: a column a fact, indexed by block id; entry 0 is the null block.

    A block is in one of three states: *free* (in the free set), *in use* (`ref` above 0), *cached* (neither). A block
    with a `block_hash` is published; cached blocks always are. Columns are `array.array`: fast one at a time in Python.
    About 80 bytes a block, and its hash.

    The free set is a sparse set: `free` is a stack, `slot[b]` where b lies in it; any member leaves in O(1).

    Attributes:
        ref: tables that name the block.
        candidate: 1 while the eviction policy may name the block: written by a PolicyHost.
        used: blocks in use. `cached` = num_blocks - len(free) - used.
        access: allocator calls that touched blocks so far: the clock of `admitted` and `last_access`.
        least_priority: no published block has a lower one.
        parent_of: the block published directly above one, as the index knows it.
        The other columns are those of BlockView, whose `key` is the column `block_hash` here.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        size = num_blocks + 1
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.used = 0
        self.access = 0
        self.free = array("i", range(num_blocks, 0, -1))
        self.slot = array("i", range(num_blocks, -1, -1))
        self.ref = array("i", [0]) * size
        self.candidate = bytearray(size)
        self.depth = array("i", [0]) * size
        self.hits = array("i", [0]) * size
        self.admitted = array("q", [0]) * size
        self.last_access = array("q", [0]) * size
        self.tenant = array("i", [0]) * size
        self.priority = array("q", [0]) * size
        self.next_use = array("d", [inf]) * size
        self.children = array("i", [0]) * size
        self.block_hash: list[BlockHash | None] = [None] * size
        self.least_priority = 0
        self.parent_of: Callable[[int], int] = lambda block: 0

    @property
    def cached(self) -> int:
        """Blocks that no request uses and that a lookup can find."""
        return self.num_blocks - len(self.free) - self.used

    def view(self, requests: LastRequests | None = None) -> BlockView:
        """Read-only live columns for an eviction policy; `requests` where it asks for the last requests."""
        size = self.num_blocks + 1
        facts: dict[str, Any] = {} if requests is None else {"last_request": _listed(requests.column)}
        return BlockView(
            depth=_read_only(self.depth),
            num_tokens=num_tokens_of(self.depth, self.block_size),
            admitted=_read_only(self.admitted),
            last_access=_read_only(self.last_access),
            hits=_read_only(self.hits),
            priority=_read_only(self.priority),
            tenant=_read_only(self.tenant),
            children=_read_only(self.children),
            next_use=_read_only(self.next_use),
            key=_listed(self.block_hash),
            parent=ComputedColumn(lambda block: self.parent_of(block), size),
            partial=ConstantColumn(value=False, length=size),  # only full blocks are published
            **facts,
        )

    def set_next_use(self, blocks: Iterable[int], access: float) -> None:
        """For a replay driver that knows the future: the access count of the next request for these blocks.

        Call it after the content was published (`commit`) or hit and before the next call that may evict. The value
        is forgotten, back to infinity, when other content is published in the block.
        """
        for block in blocks:
            self.next_use[block] = access

    def is_free(self, block: int) -> bool:
        """Whether `block` is in the free set. O(1)."""
        position = self.slot[block]
        return position < len(self.free) and self.free[position] == block

    def take_free(self, blocks: Sequence[int]) -> None:
        """Move these free blocks out of the free set. The caller has checked that they are free and distinct."""
        free, slot = self.free, self.slot
        for block in blocks:
            last = free.pop()
            if last != block:
                position = slot[block]
                free[position] = last
                slot[last] = position

    def set_free(self, blocks: Sequence[int]) -> None:
        """Put these unreferenced, unpublished blocks into the free set."""
        slot = self.slot
        for position, block in enumerate(blocks, len(self.free)):
            slot[block] = position
        self.free.extend(blocks)

    def restore_free(self, free: Sequence[int]) -> None:
        """Make these distinct blocks the free set, the last one the next to go. For a pool kept elsewhere."""
        self.free = array("i", free)
        for position, block in enumerate(free):
            self.slot[block] = position

    def describe(self, block: int, depth: int, priority: int, tenant: int) -> None:
        """Enter the facts of newly published content; `block_hash` and `children` belong to the index."""
        self.depth[block] = depth
        self.hits[block] = 0
        self.priority[block] = priority
        self.tenant[block] = tenant
        if priority < self.least_priority:
            self.least_priority = priority
        self.admitted[block] = self.last_access[block] = self.access
        self.next_use[block] = inf

    def describe_all(
        self, blocks: Sequence[int], places: Sequence[int], first: int, priority: int, tenant: int
    ) -> None:
        """`describe` each of these, at depth `first` and its place."""
        if len(blocks) < MANY:
            for block, place in zip(blocks, places, strict=True):
                self.describe(block, first + place, priority, tenant)
            return
        rows, views = indices(blocks), self.views
        gaps = places[-1] + 1 > len(places)
        views.depth[rows] = first + np.array(places) if gaps else np.arange(first, first + len(places), dtype=_INT32)
        views.hits[rows] = 0
        views.priority[rows] = priority
        views.tenant[rows] = tenant
        self.least_priority = min(self.least_priority, priority)
        views.admitted[rows] = views.last_access[rows] = self.access
        views.next_use[rows] = inf

    def unref(self, blocks: Sequence[int]) -> list[int]:
        """Take one reference from each of these, which are used now; returns those that nobody uses any more."""
        idle = list(blocks)
        if len(idle) >= MANY and len({*idle}) == len(idle):
            rows, counts = indices(blocks), self.views.ref
            self.views.last_access[rows] = self.access
            users = counts[rows] - 1
            counts[rows] = users
            if np.count_nonzero(users):
                idle = rows[users == 0].tolist()
        else:
            idle = []
            ref, last, access = self.ref, self.last_access, self.access
            for block in blocks:
                last[block] = access
                ref[block] -= 1
                if not ref[block]:
                    idle.append(block)
        self.used -= len(idle)
        return idle

    @cached_property
    def views(self) -> PoolViews:
        """Columns as writable NumPy views, for what is done to many blocks at once: not to be kept elsewhere."""
        return PoolViews(self)


class PoolViews:
    """The columns of a BlockPool that calls write for many blocks at once, (num_blocks + 1,) each."""

    def __init__(self, pool: BlockPool) -> None:
        self.ref: npt.NDArray[np.int32] = np.frombuffer(pool.ref, dtype=_INT32)
        self.depth: npt.NDArray[np.int32] = np.frombuffer(pool.depth, dtype=_INT32)
        self.hits: npt.NDArray[np.int32] = np.frombuffer(pool.hits, dtype=_INT32)
        self.tenant: npt.NDArray[np.int32] = np.frombuffer(pool.tenant, dtype=_INT32)
        self.priority: npt.NDArray[np.int64] = np.frombuffer(pool.priority, dtype=_INT64)
        self.admitted: npt.NDArray[np.int64] = np.frombuffer(pool.admitted, dtype=_INT64)
        self.last_access: npt.NDArray[np.int64] = np.frombuffer(pool.last_access, dtype=_INT64)
        self.next_use: npt.NDArray[np.float64] = np.frombuffer(pool.next_use, dtype=np.float64)


def indices(blocks: Sequence[int]) -> npt.NDArray[np.intp]:
    """These blocks as an index of columns, in the type that NumPy need not convert: a fifth of the time."""
    packed = blocks if isinstance(blocks, array) else array("i", blocks)
    return np.frombuffer(packed, dtype=_INT32).astype(_INTP)


def gather(column: Sequence[_Fact], blocks: Sequence[int]) -> tuple[_Fact, ...]:
    return itemgetter(*blocks)(column) if len(blocks) > 1 else tuple(column[block] for block in blocks)


def num_tokens_of(depth: Sequence[int], block_size: int) -> Sequence[int]:
    """The column `num_tokens` of a BlockView: tokens up to and including a block follow from its depth, live."""
    return ComputedColumn(lambda block: (depth[block] + 1) * block_size, len(depth))


def _read_only(column: array[Any]) -> Sequence[Any]:
    return cast("Sequence[Any]", memoryview(column).toreadonly())


def _listed(column: list[Any]) -> Sequence[Any]:
    return ComputedColumn(column.__getitem__, len(column))


MOST_PROMPTS = 1 << 18
"""Prompts remembered for inferring turns: a few tens of MB. A conversation that pauses for longer starts anew."""


class PromptEnds:
    """Block hashes of the last full blocks of the prompts seen, by which a later prompt is known to extend them."""

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self._most = most
        self._ends: dict[Hashable, None] = {}

    def turn_of(self, hashes: Sequence[Hashable]) -> int:
        """How many earlier prompts this one extends, prompts of equal full blocks counted once; remembers it.

        Args:
            hashes: of the prompt's full blocks, in order. One without any extends nothing and is not remembered.
        """
        if not hashes:
            return 0
        ends, last = self._ends, hashes[-1]
        turn = sum(block_hash in ends for block_hash in hashes[:-1])
        ends.pop(last, None)
        ends[last] = None
        if len(ends) > self._most:
            del ends[next(iter(ends))]
        return turn


class LastRequests:
    """The column `last_request` of `num_rows` blocks: 8 bytes a block, and a record a request that some block names."""

    def __init__(self, num_rows: int) -> None:
        self.column: list[RequestFacts] = [UNKNOWN_REQUEST] * num_rows
        self._prompts = PromptEnds()

    def admitted(
        self, request: RequestInfo, num_tokens: int, hashes: Sequence[Hashable], hit_blocks: int, block_size: int
    ) -> RequestFacts:
        """What is known of a request that is admitted with `num_tokens` tokens, `hit_blocks` blocks of them found.

        Args:
            hashes: of its full blocks, in order.
        """
        prompt = num_tokens if request.prompt_tokens is None else request.prompt_tokens
        turn = self._prompts.turn_of(hashes[: prompt // block_size])
        new = max(0, -(-prompt // block_size) - hit_blocks)
        return facts_of(request, prompt, new, turn if request.turn is None else request.turn)

    def forked(self, parent: RequestFacts, child: RequestInfo) -> RequestFacts:
        """What is known of a sample or beam that goes on from `parent`'s blocks."""
        return replace(parent, hint=child.hint, tenant=child.tenant or None)

    def ended(self, blocks: Iterable[int], facts: RequestFacts, num_tokens: int) -> None:
        """The request of these facts, which has `num_tokens` tokens by now, releases its blocks."""
        self.used(blocks, replace(facts, output_tokens=max(0, num_tokens - (facts.prompt_tokens or 0))))

    def used(self, blocks: Iterable[int], facts: RequestFacts) -> None:
        """The request of these facts published or releases these blocks."""
        column = self.column
        for block in blocks:
            column[block] = facts


def facts_of(request: RequestInfo, prompt_tokens: int, new_blocks: int, turn: int) -> RequestFacts:
    """The record of a request; an empty tenant is an unknown one."""
    return RequestFacts(
        turn=turn,
        prompt_tokens=prompt_tokens,
        new_blocks=new_blocks,
        arrival=request.arrival,
        session=request.session,
        category=request.category,
        tenant=request.tenant or None,
        hint=request.hint,
    )
