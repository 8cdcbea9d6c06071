"""A complete paged allocator: blocks of fixed size, tables, sharing and eviction. A subclass says what is shared."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from framework.errors import (
    InvalidArgument,
    InvariantViolation,
    OutOfBlocks,
)
from framework.guard.policy import PolicyHost
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.paged.audit import audit
from framework.paged.cache import BlockCache
from framework.paged.index import BlockHasher, PrefixIndex, prefix_index
from framework.paged.pool import BlockPool, LastRequests
from framework.paged.table import Table, Tables, check_version, count_of, without_copies
from framework.types import (
    BlockCopy,
    BlockHash,
    BlockId,
    Namespace,
    RequestId,
    RequestInfo,
    TableChange,
    TokenArray,
)
from framework.types import as_tokens as _as_tokens

_INT32 = np.dtype(np.int32)


class PagedAllocator(Allocator):
    """A complete paged allocator in which a subclass says what is shared, and may override one choice.

    `share_prefix`: full blocks are found again by later requests, by chained hash. `share_forks`: what a fork shares;
    "none" copies every block, "full" shares full blocks and copies the tail, "all" shares everything and copies a
    block when it is about to be written. Override `choose_free` to say which free blocks a request gets.

    Costs: O(1) a block for lookup, allocate, extend, commit, free and fork, plus the policy's O(log n) a victim.

    Args:
        num_blocks: usable blocks; ids 1 to num_blocks.
        block_size: tokens.
        hash: of contents; unused unless `share_prefix`.
        eviction: orders cached blocks; unused unless `share_prefix`. Belongs to this allocator from here on.
        watermark: fraction of `num_blocks` that an admission leaves free or evictable, so that running requests can
            grow. Ignored when no request holds a block, and by `extend`.
        leaf_only: evict a block only after every block published below it.
        duplicates: of a content that a block holds already and a request computes again (its prefix had been evicted):
            "merge" lets the request use that block and frees its own; "keep" publishes the second beside the first,
            as vLLM does, whose tables only grow.

    Raises:
        InvalidArgument: a size below 1, a watermark outside 0 to 1, `duplicates` that are kept with `leaf_only` or
            by a hash scheme that is not collision resistant; `leaf_only`, or `duplicates` that are kept, without
            `share_prefix`.

    Attributes:
        tables: of the live requests. Not to be changed.
        ahead: blocks that were published and have yet to be computed, in the step at hand.
        version: grows with each change that makes an earlier hit invalid.

    Source: Kwon et al. 2023, arXiv:2309.06180; prefix sharing as in vLLM's automatic prefix caching.
    """

    takes_future = drops_tokens = True
    share_prefix: ClassVar[bool] = False
    share_forks: ClassVar[Literal["none", "full", "all"]] = "none"
    _index: ClassVar[Callable[..., PrefixIndex]] = staticmethod(prefix_index)

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        hash: HashScheme,
        eviction: EvictionPolicy,
        watermark: float = 0.01,
        leaf_only: bool = False,
        duplicates: Literal["merge", "keep"] = "merge",
    ) -> None:
        self.num_blocks = count_of("num_blocks", num_blocks, 1)
        self.block_size = count_of("block_size", block_size, 1)
        if not 0.0 <= watermark < 1.0:
            raise InvalidArgument(f"watermark must be a fraction from 0 to below 1, found {watermark}")
        if not self.share_prefix and (leaf_only or duplicates != "merge"):
            raise InvalidArgument(
                f"leaf_only and duplicates are about blocks that requests share, and {type(self).__name__} shares none "
                "across requests; leave them out or take allocator=prefix or prefix_cow"
            )
        self.watermark = watermark
        self._reserve = int(watermark * num_blocks)
        self.pool = BlockPool(num_blocks, block_size)
        index = self._index(self.pool, hash, duplicates, leaf_only=leaf_only)
        host = PolicyHost(eviction, self.pool.candidate)
        self._requests = LastRequests(num_blocks + 1) if host.policy.needs_requests else None
        host.policy.attach(self.pool.view(self._requests))
        overridden = type(self).choose_free is not PagedAllocator.choose_free
        self.cache = BlockCache(self.pool, index, host, leaf_only, self.choose_free if overridden else None)
        self.hasher = BlockHasher(hash, block_size)
        self.hits_whole_blocks = type(self).lookup is PagedAllocator.lookup
        self.tables: Tables[Table] = Tables()
        self.ahead: set[int] = set()
        self._tenants: dict[str, int] = {"": 0}
        self.version = self._hit_tokens = self._prompt_tokens = self._copied_blocks = 0

    def choose_free(self, count: int) -> Sequence[BlockId]:
        """Which `count` free blocks to hand out next. Override this.

        Read `self.pool.free` (all free block ids, in no meaningful order but that the last was freed last) and
        `self.pool.is_free(block)`; change nothing. `0 < count <= len(self.pool.free)`.

        Returns:
            `count` distinct free block ids, as Python ints, in table order. Anything else is a PluginError.
        """
        return [BlockId(block) for block in self.pool.free[: -count - 1 : -1]]

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        if not self.share_prefix:
            return Hit(version=self.version)
        tokens = _as_tokens(tokens)
        anchor, hashes = self.hasher.of(tokens, namespace, previous)
        limit = (len(tokens) - 1) // self.block_size
        data = self._compared(tokens, namespace)
        blocks: Any = self.cache.index.find(anchor, hashes, data, limit) if limit > 0 else ()
        return Hit(len(blocks) * self.block_size, tuple(blocks), hashes, self.version)

    def _check_hit(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> None:
        check_version(request, hit, self.version)
        if hit.num_tokens != len(hit.blocks) * self.block_size or (hit.blocks and hit.num_tokens >= len(tokens)):
            raise InvalidArgument(f"a hit of {hit.num_tokens} tokens in {len(hit.blocks)} blocks is not of this prompt")
        if len(hit.hashes) > len(tokens) // self.block_size:
            raise InvalidArgument(
                f"a hit with {len(hit.hashes)} full blocks is not of a prompt of {len(tokens)} tokens"
            )
        self.hasher.check(hit.hashes, request.namespace)

    def _shortage(self, num_tokens: int, hit: Hit) -> tuple[int, int, int]:
        """Blocks an admission needs, blocks it may have, and the watermark that applies."""
        need = -(-num_tokens // self.block_size) - len(hit.blocks)
        return need, self.cache.available(hit.blocks), self._reserve if self.pool.used else 0

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        if request.id in self.tables or not len(tokens):
            return False
        self._check_hit(request, tokens, hit)
        need, have, reserve = self._shortage(len(tokens), hit)
        return need + reserve <= have

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        if num_tokens is None:
            num_tokens = len(tokens)
        elif not hit.num_tokens < num_tokens <= len(tokens):
            raise InvalidArgument(
                f"room for {num_tokens} tokens of request {request.id}: more than the {hit.num_tokens} of its hit, and "
                f"at most the {len(tokens)} of its prompt"
            )
        self.tables.check_new(request)
        self._check_hit(request, tokens, hit)
        tokens = _as_tokens(tokens)
        if not len(tokens):
            raise InvalidArgument(f"request {request.id} has an empty prompt; it needs at least one token")
        need, have, reserve = self._shortage(num_tokens, hit)
        if need + reserve > have:
            raise self._out_of_blocks(need, have, reserve)
        root, anchor = self.hasher.root(request.namespace)
        hashes = list(hit.hashes)
        if self.share_prefix and not hashes:
            hashes = self.hasher.blocks(root, tokens, request.namespace)
        self.pool.access += 1
        blocks = array("i", hit.blocks)
        blocks.fromlist(self.cache.take(need, hit.blocks, request.priority))
        tenant = self._tenants.setdefault(request.tenant, len(self._tenants))
        table = Table(request, blocks, root, anchor, tenant)
        table.token_bytes = bytearray(tokens)
        if self.share_prefix:
            table.hashes = hashes
            table.published = len(hit.blocks)
        table.committed = hit.num_tokens
        if self._requests is not None:
            table.facts = self._requests.admitted(request, len(tokens), hashes, len(hit.blocks), self.block_size)
        self.tables[request.id] = table
        self._hit_tokens += hit.num_tokens
        self._prompt_tokens += len(tokens)
        self.version += 1

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        table = self.tables[parent]
        self.tables.check_new(child)
        count_of("num_tokens", num_tokens, 0)
        room = len(table.blocks) * self.block_size + table.removed
        if num_tokens > room:
            raise InvalidArgument(f"fork of {num_tokens} tokens from request {parent}, which has room for {room}")
        if num_tokens < table.dropped_at:
            raise InvalidArgument(
                f"fork of {num_tokens} tokens from request {parent}, which dropped some of its first {table.dropped_at}"
            )
        if child.namespace != table.request.namespace:
            raise InvalidArgument(
                f"a fork stays in its parent's {table.request.namespace}, asked for {child.namespace}"
            )
        null_tokens = table.num_null * self.block_size
        if null_tokens and num_tokens < null_tokens + self.block_size:  # nothing could be published below them
            raise InvalidArgument(
                f"fork of request {parent} at {num_tokens} tokens: its first {null_tokens} were passed to "
                "unref_leading; keep a full block after them"
            )
        stored = num_tokens - table.removed
        total, full = -(-stored // self.block_size), stored // self.block_size
        kept = max(table.num_null, {"none": 0, "full": full, "all": total}[self.share_forks])
        if total - kept > self.pool.num_blocks - self.pool.used:
            raise self._out_of_blocks(total - kept, self.cache.available())
        self.pool.access += 1
        fresh = self.cache.take(total - kept)
        copies = tuple(BlockCopy(BlockId(a), BlockId(b)) for a, b in zip(table.blocks[kept:total], fresh, strict=True))
        blocks, pool = table.blocks[:kept], self.pool
        for block in blocks[table.num_null :]:
            pool.ref[block] += 1
            pool.last_access[block] = pool.access
        blocks.fromlist(fresh)
        tenant = self._tenants.setdefault(child.tenant, len(self._tenants))
        made = self.tables[child.id] = table.child(child, blocks, tenant, num_tokens, full, kept)
        if kept:
            table.shared = made.shared = True
        if self._requests is not None:
            made.facts = self._requests.forked(table.facts, child)
        self._copied_blocks += len(copies)
        self.version += 1
        return TableChange(0, copies)

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        table = self.tables[request]
        if type(num_tokens) is not int or num_tokens < 0:
            num_tokens = count_of("num_tokens", num_tokens, 0)
        blocks, size, pool = table.blocks, len(table.blocks), self.pool
        need = -((table.removed - num_tokens) // self.block_size) - size
        shared = self._unsafe(table) if table.shared else None
        if shared:
            need = max(0, need) + len(shared)
        if need <= 0:
            table.shared = False
            return without_copies(size)
        if need > pool.num_blocks - pool.used:
            raise self._out_of_blocks(need, self.cache.available())
        pool.access += 1
        if need == 1 and not shared:
            blocks.append(self.cache.take_one())
            self.version += 1
            return without_copies(size)
        fresh = self.cache.take(need)
        self.version += 1
        if not shared:
            blocks.fromlist(fresh)
            return without_copies(size)
        replacements = fresh[: len(shared)]
        copies = tuple(
            BlockCopy(BlockId(blocks[index]), BlockId(block)) for index, block in zip(shared, replacements, strict=True)
        )
        self.cache.replace(blocks, shared, replacements)
        blocks.fromlist(fresh[len(shared) :])
        table.shared = False
        self._copied_blocks += len(copies)
        return TableChange(shared[0], copies)

    def _unsafe(self, table: Table) -> list[int]:
        """Table indexes from the committed length on whose block others can see."""
        ref, hash_of, blocks = self.pool.ref, self.pool.block_hash, table.blocks
        stored = table.committed - table.removed
        first = max(stored // self.block_size, table.published)  # what it published ahead it writes in place
        return [
            index for index in range(first, len(blocks)) if ref[blocks[index]] > 1 or hash_of[blocks[index]] is not None
        ]

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        table = self.tables[request]
        num_tokens, start, size = len(tokens), len(table.blocks), self.block_size
        if not table.committed <= num_tokens <= start * size + table.removed:
            raise InvalidArgument(
                f"commit of {num_tokens} tokens for request {request}: {table.committed} are committed and there is "
                f"room for {start * size + table.removed}; extend first"
            )
        if type(tokens) is not np.ndarray or tokens.dtype is not _INT32 or not tokens.flags.c_contiguous:
            tokens = _as_tokens(tokens)
        data, token_bytes = tokens.data, table.token_bytes  # as buffers: their slices cost less than an array's
        known = len(token_bytes) // 4
        if not token_bytes.startswith(data[:known]):
            table.refuse(tokens)
        if self.share_prefix and num_tokens // size > table.published and not table.closed:
            start = self._publish(table, num_tokens // size, tokens, data)
        if known < num_tokens:
            token_bytes += data[known:]
        if self.ahead:
            self.ahead.difference_update(table.blocks[table.committed // size : num_tokens // size])
        table.committed = num_tokens
        return without_copies(start)

    def _publish(self, table: Table, full: int, tokens: TokenArray, buffer: memoryview) -> int:
        """Publish the blocks up to `full`, whose tokens are the first of `tokens`, which lie in `buffer`."""
        hashes, first, size = table.hashes, table.published, self.block_size
        known = len(hashes)
        more: list[BlockHash] = []
        if known < full:
            parent, space = hashes[-1] if hashes else table.root, table.request.namespace
            more = self.hasher.blocks(parent, tokens[known * size : full * size], space, known)
        fresh = hashes[first:full] + more if known > first else more
        data = self._compared(buffer[first * size : full * size], table.request.namespace, first)
        self.pool.access += 1
        if self._requests is not None:
            self._requests.used(table.blocks[first:full], table.facts)
        given = table.anchor, table.blocks, first, fresh, data, table.request.priority, table.tenant
        if len(fresh) == 1:
            count, start = self.cache.publish_one(*given)
        else:
            count, start = self.cache.publish(*given, unpublished=not table.shared)
        hashes += more
        table.published = first + count
        if table.shared:
            self.cache.note_shared(table.blocks[first : table.published])
        table.closed = table.published < full
        self.version += 1
        return start

    def publish(self, request: RequestId, tokens: TokenArray) -> None:
        table, tokens = self.tables[request], _as_tokens(tokens)
        if len(tokens) > len(table.blocks) * self.block_size + table.removed:
            raise InvalidArgument(
                f"publish of {len(tokens)} tokens for request {request}: there is room for "
                f"{len(table.blocks) * self.block_size + table.removed}; extend first"
            )
        token_bytes, data, pool = table.token_bytes, tokens.data, self.pool
        if not token_bytes.startswith(data[: len(token_bytes) // 4]):
            table.refuse(tokens)
        first, full, size = table.published, len(tokens) // self.block_size, 4 * self.block_size
        if not self.share_prefix or table.closed or table.shared or full <= first:
            return
        token_bytes += data[len(token_bytes) // 4 :]
        known = len(table.hashes)
        if known < full:
            fresh = tokens[known * self.block_size : full * self.block_size]
            parent_hash = table.hashes[-1] if known else table.root
            table.hashes += self.hasher.blocks(parent_hash, fresh, table.request.namespace, known)
        hashes = table.hashes[first:full]
        contents = self._compared(token_bytes[first * size : full * size], table.request.namespace, first)
        parent = table.blocks[first - 1] if first else 0
        count = self.cache.index.count_new(table.anchor, parent, hashes, contents)
        if not count:
            return
        pool.access += 1
        blocks, priority = table.blocks[first : first + count], table.request.priority
        if self._requests is not None:
            self._requests.used(blocks, table.facts)
        self.cache.publish(table.anchor, table.blocks, first, hashes[:count], contents, priority, table.tenant)
        table.published += count
        self.ahead.update(blocks)
        self.version += 1

    def _compared(self, tokens: TokenArray | memoryview | bytearray, namespace: Namespace, first: int = 0) -> bytes:
        """What the index compares of these tokens, int32, which follow `first` blocks."""
        if not self.cache.index.compares_tokens:
            return b""
        return self.hasher.comparable(np.frombuffer(tokens, dtype=_INT32), namespace, first).tobytes()

    def _out_of_blocks(self, need: int, have: int, reserve: int = 0) -> OutOfBlocks:
        free = min(len(self.pool.free), have)
        kept = f", {reserve} of them kept by the watermark" if reserve else ""
        return OutOfBlocks(
            f"need {need} blocks, have {free} free + {have - free} evictable of {self.num_blocks}{kept}; "
            "preempt a request or raise cache.num_blocks"
        )

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        table = self.tables[request]
        count_of("num_tokens", num_tokens, 0)
        last = table.committed // self.block_size
        if self.share_prefix and not table.closed:
            last = min(last, table.published)
        first, end = table.num_null, min(num_tokens // self.block_size, last - 1)
        if end <= first:
            return first
        dropped, rest = table.blocks[first:end], table.blocks[end]
        table.blocks[first:end] = array("i", bytes(4 * (end - first)))
        table.num_null = end
        self.pool.access += 1
        self.version += 1
        if self._requests is not None:
            self._requests.used(dropped, table.facts)
        self.cache.detach(rest)
        self.cache.unref(dropped[::-1])
        return end

    def drop(
        self, request: RequestId, num_tokens: int, dropped: Sequence[int], rewritten: int | None = None
    ) -> TableChange:
        table, gone = self.tables[request], {*dropped}
        old = table.blocks
        kept = [index for index in range(len(old)) if index not in gone]
        rewritten = len(kept) if rewritten is None else rewritten
        rest = kept[rewritten:]
        self._check_drop(table, num_tokens, dropped, kept, rewritten)
        pool, cache = self.pool, self.cache
        shared = [index for index in rest if pool.ref[old[index]] > 1]
        if len(shared) > cache.available():
            raise self._out_of_blocks(len(shared), cache.available())
        pool.access += 1
        self.version += 1
        if shared:
            cache.replace(old, shared, cache.take(len(shared)))
        leaving = [old[index] for index in dropped]
        if self._requests is not None:
            self._requests.used(leaving, table.facts)
        cache.unpublish([old[index] for index in reversed(rest) if pool.block_hash[old[index]] is not None])
        for index in kept[:rewritten]:
            if index - 1 in gone:
                cache.detach(old[index])
        table.blocks = array("i", [old[index] for index in kept])
        start = min([rewritten, *dropped[:1]])
        table.published = min(table.published, start, num_tokens // self.block_size)
        table.closed = table.shared = True
        table.removed, table.dropped_at = table.committed - num_tokens, table.committed
        cache.unref(leaving[::-1])
        return TableChange(start)

    def _check_drop(
        self, table: Table, num_tokens: int, dropped: Sequence[int], kept: Sequence[int], rewritten: int
    ) -> None:
        stored, rising = table.committed - table.removed, all(a < b for a, b in itertools.pairwise(dropped))
        inside = rising and (not dropped or 0 <= dropped[0] <= dropped[-1] < len(table.blocks))
        fits = 0 < num_tokens <= min(stored, len(kept) * self.block_size)
        if table.num_null or not (inside and fits and 0 <= rewritten <= len(kept)):
            raise InvalidArgument(
                f"request {table.request.id} cannot drop blocks {[*dropped]} and keep {num_tokens} tokens, rewritten "
                f"from block {rewritten} on: it has {stored} in {len(table.blocks)} blocks of {self.block_size}, of "
                f"which {table.num_null} were passed by a window"
            )

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        table = self.tables[request]
        if table.published * self.block_size > table.committed:
            first = table.committed // self.block_size
            ahead, table.published = table.blocks[first : table.published], first
            self.ahead.difference_update(ahead)
            self.cache.unpublish(ahead[::-1])
        for block, when in zip(table.blocks[: table.published], next_use, strict=False):
            if block:
                self.pool.set_next_use((block,), when)
        del self.tables[request]
        self.pool.access += 1
        self.version += 1
        blocks = table.blocks[table.num_null :] if table.num_null else table.blocks
        if self._requests is not None:
            self._requests.ended(blocks, table.facts, len(table.token_bytes) // 4)
        self.cache.unref(blocks[::-1], len(table.blocks) - max(table.published, table.num_null))

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        return np.frombuffer(bytearray(self.tables[request].blocks), dtype=_INT32)

    def reset(self, request: RequestId | None = None) -> None:
        if request is None:
            self.ahead.clear()
            for table in self.tables.values():
                table.closed = True
                table.published = 0
                table.shared = True
            self.version += 1
            self.pool.access += 1
            self.cache.reset()
            return
        table, pool = self.tables[request], self.pool
        if self.ahead:
            raise InvalidArgument(f"reset of request {request} while a step is being computed; commit it first")
        gone = {block for block in table.blocks if pool.block_hash[block] is not None}
        above = self.cache.index.parent(min(gone, key=pool.depth.__getitem__)) if gone else 0
        while above:  # what a window has passed
            gone.add(above)
            above = self.cache.index.parent(above)
        for live_table in self.tables.values():
            first = next(
                (index for index, block in enumerate(live_table.blocks[: live_table.published]) if block in gone), None
            )
            if first is not None:
                live_table.published, live_table.closed, live_table.shared = first, True, True
        blocks = sorted(gone, key=pool.depth.__getitem__, reverse=True)
        cached = [block for block in blocks if not pool.ref[block]]
        self.version += 1
        pool.access += 1
        self.cache.unpublish(blocks)
        pool.set_free(cached)

    def stats(self) -> AllocatorStats:
        pool = self.pool
        return AllocatorStats(
            num_blocks=self.num_blocks,
            free_blocks=len(pool.free),
            cached_blocks=pool.cached,
            used_blocks=pool.used,
            num_requests=len(self.tables),
            hit_tokens=self._hit_tokens,
            prompt_tokens=self._prompt_tokens,
            evictions=self.cache.evictions,
            copied_blocks=self._copied_blocks,
            collisions=self.cache.index.collisions,
        )

    def facts(self) -> dict[str, str | int | float]:
        return {"cached_blocks": self.pool.cached} if self.share_prefix else {}

    def check(self) -> None:
        faults = audit(self)
        if faults:
            raise InvariantViolation(f"{type(self).__name__}: " + "; ".join(faults))

    def advance(self, now: float) -> None:
        host = self.cache.host
        if now < host.now:
            raise InvalidArgument(f"time goes forward: asked for {now}, it is {host.now}")
        host.now = now

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self.cache.listener = listener
