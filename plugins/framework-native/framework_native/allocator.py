"""`prefix` and `prefix_cow` in C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument, InvariantViolation
from framework.guard.policy import GuardedPolicy
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.eviction import BlockView, ComputedColumn, ConstantColumn, EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.paged.index import BlockHasher
from framework.paged.pool import LastRequests, num_tokens_of
from framework.paged.table import count_of
from framework.types import Namespace, RequestFacts, RequestId, RequestInfo, TableChange, TokenArray
from framework_native._core import Core
from framework_native.audit import faults


class NativeAllocator(Allocator):
    """`prefix` in C++: the same blocks, the same policy calls in the same order, the same event log.

    Any hash scheme and any eviction policy works; `sha256`, `xxh3_128` and `lru` as the framework ships them run in C++
    too, with the same block hashes and the same victims. A policy passed in is then never called, not even `attach`.

    Costs: about 0.1 microseconds a prompt block from lookup to commit, most of it SHA-256; under 200 bytes a
    block of capacity, and 37 a block of a live table. Args and errors: framework.paged.allocator.PagedAllocator.
    """

    takes_future = True
    share_tails: ClassVar[bool] = False
    """Whether a fork shares its parent's last, partly filled block too, to be copied on the first write."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        hash: HashScheme,
        eviction: EvictionPolicy,
        watermark: float = 0.01,
        leaf_only: bool = False,
    ) -> None:
        self.num_blocks = count_of("num_blocks", num_blocks, 1)
        self.block_size = count_of("block_size", block_size, 1)
        if not 0.0 <= watermark < 1.0:
            raise InvalidArgument(f"watermark must be a fraction from 0 to below 1, found {watermark}")
        self._leaf_only = leaf_only
        lru = _is_builtin(eviction, "framework_builtin.eviction.lru", "Lru")
        self._core = Core(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            reserve=int(watermark * num_blocks),
            leaf_only=leaf_only,
            share_tails=self.share_tails,
            collision_resistant=hash.collision_resistant,
            native_sha256=_is_builtin(hash, "framework_builtin.hash.sha256", "Sha256"),
            native_xxh3=_is_builtin(hash, "framework_builtin.hash.xxh3_128", "Xxh3_128"),
            native_lru=lru,
        )
        self._columns: dict[str, Any] = self._core.columns()  # writable NumPy views, for `check` and its tests
        policy = None if lru else GuardedPolicy(eviction)
        marks: Any = self._columns["candidate"]
        candidates = memoryview(marks).toreadonly()
        self._requests = LastRequests(num_blocks + 1) if not lru and eviction.needs_requests else None
        self._facts: dict[RequestId, RequestFacts] = {}
        self._lengths: dict[RequestId, int] = {}  # tokens committed, prompt included
        self._entered: dict[RequestId, int] = {}  # leading blocks whose last request is noted
        if not lru:
            eviction.attach(self.view())
        self._core.bind(BlockHasher(hash, self.block_size), policy, candidates)

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        hit: Hit = self._core.lookup(tokens, namespace, previous)
        return hit

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        return bool(self._core.fits(request, tokens, hit))

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        self._core.allocate(request, tokens, hit, num_tokens)
        if self._requests is not None:
            num_hits, size = len(hit.blocks), self.block_size
            facts = self._requests.admitted(request, len(tokens), self._core.hashes(request.id), num_hits, size)
            self._facts[request.id], self._entered[request.id] = facts, num_hits

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        change: TableChange = self._core.extend(request, num_tokens)
        return change

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        if self._requests is not None and request in self._facts:
            self._enter(self._requests, request, len(tokens) // self.block_size)
            self._lengths[request] = len(tokens)
        change: TableChange = self._core.commit(request, tokens)
        return change

    def _enter(self, requests: LastRequests, request: RequestId, full: int) -> None:
        """Note the request as the last one of the blocks that it is about to publish."""
        first, hash_of = self._entered[request], self._core.block_hash
        if full > first:
            filled = self._core.table(request)[first:full].tolist()
            requests.used([block for block in filled if hash_of(block) is None], self._facts[request])
            self._entered[request] = full

    def publish(self, request: RequestId, tokens: TokenArray) -> None:
        if self._requests is not None and request in self._facts:
            self._enter(self._requests, request, len(tokens) // self.block_size)
        self._core.publish(request, tokens)

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        change: TableChange = self._core.fork(parent, child, num_tokens)
        if self._requests is not None:
            self._facts[child.id] = self._requests.forked(self._facts[parent], child)
            self._entered[child.id] = min(self._entered[parent], num_tokens // self.block_size)
        return change

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        requests, facts = self._requests, self._facts.get(request)
        if requests is None or facts is None:
            return self._core.unref_leading(request, num_tokens, None)
        return self._core.unref_leading(request, num_tokens, lambda blocks: requests.used(blocks, facts))

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        if next_use:
            self._core.foresee(request, next_use)
        if self._requests is not None and request in self._facts:
            table = self._core.table(request)
            facts, num_tokens = self._facts.pop(request), self._lengths.pop(request, 0)
            self._requests.ended(table[table > 0].tolist(), facts, num_tokens)
            del self._entered[request]
        self._core.free(request)

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        blocks: npt.NDArray[np.int32] = self._core.table(request)
        return blocks

    def reset(self, request: RequestId | None = None) -> None:
        if request is None:
            self._core.reset()
        else:
            self._core.discard(request)

    def stats(self) -> AllocatorStats:
        return AllocatorStats(**dict(zip(AllocatorStats.__dataclass_fields__, self._core.stats(), strict=True)))

    def facts(self) -> dict[str, str | int | float]:
        return {"cached_blocks": self.stats().cached_blocks}

    def check(self) -> None:
        violations = faults(self._core, self._columns, self.num_blocks, self.block_size, self._leaf_only)
        if violations:
            raise InvariantViolation(f"{type(self).__name__}: " + "; ".join(violations))

    def advance(self, now: float) -> None:
        self._core.advance(now)

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self._core.listen(listener)

    def view(self) -> BlockView:
        """Read-only live columns for an eviction policy."""
        columns = {name: memoryview(values).toreadonly() for name, values in self._columns.items()}
        facts: dict[str, Any] = {name: columns[name] for name in BlockView.__dataclass_fields__ if name in columns}
        if self._requests is not None:
            facts["last_request"] = self._requests.column
        return BlockView(
            **facts,
            num_tokens=num_tokens_of(columns["depth"], self.block_size),
            key=ComputedColumn(self._core.block_hash, self.num_blocks + 1),
            parent=ComputedColumn(self._core.parent, self.num_blocks + 1),
            partial=ConstantColumn(value=False, length=self.num_blocks + 1),
        )


class NativeCowAllocator(NativeAllocator):
    """`prefix_cow` in C++: as `native`, and forks share their last block until one of them writes to it."""

    share_tails = True


def _is_builtin(plugin: object, module: str, name: str) -> bool:
    """Whether this is the framework's own class and no subclass of it: what the C++ core has a twin of."""
    kind = type(plugin)
    return kind.__module__ == module and kind.__qualname__ == name
