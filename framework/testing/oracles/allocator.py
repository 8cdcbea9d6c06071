"""A prefix-sharing, copy-on-write allocator written for reading and not for speed.

Dicts and lists, every fact in one place, every step O(n). The conformance kits run it as a second implementation, and
the mutants that the kits must catch are subclasses that break one method each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import (
    DuplicateRequest,
    InvalidArgument,
    InvariantViolation,
    OutOfBlocks,
    PluginError,
    StaleHit,
)
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.testing.oracles.pool import Row as Row
from framework.testing.oracles.pool import SlowPool
from framework.types import (
    BlockCopy,
    BlockId,
    Namespace,
    RequestId,
    RequestInfo,
    TableChange,
    TokenArray,
)


class SlowAllocator(SlowPool, Allocator):
    """Shares full published blocks across requests and all blocks among forks; copies on the first write."""

    # Pure questions

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        hashes, blocks = self.hashes(tokens, namespace), []
        values = tuple(tokens.tolist())
        for index in range(self.most_hit_blocks(len(values))):
            block = self.find(hashes[index], (namespace, values[: (index + 1) * self.block_size]))
            if block is None:
                break
            blocks.append(BlockId(block))
        return Hit(len(blocks) * self.block_size, tuple(blocks), hashes, self.version)

    def most_hit_blocks(self, num_tokens: int) -> int:
        """Full blocks that leave at least one token to compute."""
        return max(0, num_tokens - 1) // self.block_size

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        new = self.room(len(tokens)) - len(hit.blocks)
        return new <= self.reclaimable(keep=hit.blocks)

    def ever_fits(self, request: RequestInfo) -> bool:
        return self.room(request.max_total_tokens) <= self.num_blocks

    def reclaimable(self, keep: tuple[BlockId, ...] = ()) -> int:
        """Free blocks, and cached ones that are not in `keep`."""
        return len(self.free_blocks) + len(set(self.cached()) - set(keep))

    def table(self, request: RequestId) -> npt.NDArray[np.int32]:
        return np.array(self.row(request).table, dtype=np.int32)

    # The life of a request

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> None:
        if request.id in self.rows:
            raise DuplicateRequest(f"request {request.id} holds a table already")
        if hit.version != self.version:
            raise StaleHit(f"hit of version {hit.version}, the pool is at {self.version}; look it up again")
        if not self.fits(request, tokens, hit):
            raise OutOfBlocks(f"need {self.room(len(tokens)) - len(hit.blocks)} blocks, have {self.reclaimable()}")
        self.share(hit.blocks, request, hits=True)
        try:
            new = self.take(self.room(len(tokens)) - len(hit.blocks))
        except PluginError:
            self.drop(list(hit.blocks))
            raise
        self.rows[request.id] = Row(request, [*hit.blocks, *new], hit.num_tokens, tuple(tokens.tolist()))
        self.totals["hit_tokens"] += hit.num_tokens
        self.totals["prompt_tokens"] += len(tokens)
        self.changed()

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        row = self.row(request)
        if num_tokens < 0:
            raise InvalidArgument(f"num_tokens must be at least 0, found {num_tokens}")
        grow = max(0, self.room(num_tokens) - len(row.table))
        shared = self.to_copy(row)
        if not grow and not shared:
            return TableChange(len(row.table))
        if grow + len(shared) > self.reclaimable():
            raise OutOfBlocks(f"need {grow} more and {len(shared)} to copy, have {self.reclaimable()}")
        new = self.take(grow + len(shared))
        start = min([*shared, len(row.table)])
        copies = []
        for index in shared:
            source, row.table[index] = row.table[index], new.pop(0)
            copies.append(BlockCopy(BlockId(source), BlockId(row.table[index])))
            self.drop([source])
        row.table += new
        self.totals["copied_blocks"] += len(copies)
        self.changed()
        return TableChange(start, tuple(copies))

    def to_copy(self, row: Row) -> list[int]:
        """Indices of the blocks that will be written and that others use or may find."""
        first = row.committed // self.block_size
        return [i for i in range(first, len(row.table)) if self.must_copy(row.table[i])]

    def must_copy(self, block: int) -> bool:
        """Whether writing to this block would change what another table or a later hit reads."""
        return self.references[block] > 1 or block in self.content

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        row, values = self.row(request), tuple(tokens.tolist())
        if not row.committed <= len(values) <= len(row.table) * self.block_size:
            raise InvalidArgument(
                f"commit of {len(values)} tokens: must be {row.committed} to {len(row.table) * self.block_size}"
            )
        if row.tokens[: len(values)] != values[: len(row.tokens)]:
            raise InvalidArgument(f"commit of other tokens than those known: {values}, known {row.tokens}")
        hashes, start, published = self.hashes(tokens, row.info.namespace), len(row.table), []
        for index in self.newly_full(row, len(values)):
            content = (row.info.namespace, values[: (index + 1) * self.block_size])
            if row.stale or row.table[index] in self.content:
                continue
            twin = self.find(hashes[index], content)
            if twin is not None:
                self.swap(row, index, twin)
                start = min(start, index)
            elif hashes[index] not in self.holder_of:
                self.publish(row, index, hashes[index], content)
                published.append(BlockId(row.table[index]))
            else:
                self.totals["collisions"] += 1
        row.committed, row.tokens = len(values), max(row.tokens, values, key=len)
        if published:
            self.policy.admit(published[::-1], self.now)
        self.changed()
        return TableChange(start)

    def newly_full(self, row: Row, num_tokens: int) -> range:
        """Indices of the blocks that a commit of `num_tokens` fills."""
        return range(row.committed // self.block_size, num_tokens // self.block_size)

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        row = self.row(parent)
        if child.id in self.rows:
            raise DuplicateRequest(f"request {child.id} holds a table already")
        if not 0 <= num_tokens <= len(row.table) * self.block_size:
            raise InvalidArgument(f"fork at {num_tokens} tokens: the parent has room for fewer")
        self.require_kept(row, num_tokens)
        blocks = tuple(BlockId(block) for block in row.table[: self.room(num_tokens)])
        self.share(blocks[row.num_null :], child, hits=False)
        self.rows[child.id] = Row(child, list(blocks), num_tokens, row.tokens[:num_tokens], row.stale, row.num_null)
        self.changed()
        return TableChange(0)

    def require_kept(self, row: Row, num_tokens: int) -> None:
        """Refuse to go back to where the block before was unreferenced."""
        if row.num_null and num_tokens < (row.num_null + 1) * self.block_size:
            raise InvalidArgument(f"{num_tokens} tokens: {row.num_null} leading blocks were unreferenced")

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        row = self.row(request)
        if num_tokens < 0:
            raise InvalidArgument(f"num_tokens must be at least 0, found {num_tokens}")
        end = min(num_tokens, row.committed - self.block_size) // self.block_size
        if end > row.num_null:
            passed = row.table[row.num_null : end]
            row.table[:end], row.num_null = [0] * end, end
            self.drop(passed[::-1])
            self.changed()
        return row.num_null

    def truncate(self, request: RequestId, num_tokens: int) -> None:
        row = self.row(request)
        self.require_kept(row, num_tokens)
        published = sum(1 for block in row.table[: row.committed // self.block_size] if block in self.content)
        if not published * self.block_size <= num_tokens <= len(row.table) * self.block_size:
            raise InvalidArgument(f"truncate to {num_tokens}: {published} blocks are published, {len(row.table)} held")
        keep = self.room(num_tokens)
        self.drop(row.table[: keep - 1 if keep else None : -1] if len(row.table) > keep else [])
        del row.table[keep:]
        row.committed, row.tokens = min(row.committed, num_tokens), row.tokens[:num_tokens]
        self.changed()

    def free(self, request: RequestId) -> None:
        row = self.row(request)
        del self.rows[request]
        self.drop(row.table[row.num_null :][::-1])
        self.changed()

    def reset(self) -> None:
        self.free_blocks += self.cached()
        for block in list(self.content):
            self.forget(block)
        for row in self.rows.values():
            row.stale = True
        self.changed()

    # Counts

    def stats(self) -> AllocatorStats:
        used, cached = sum(1 for count in self.references.values() if count), len(self.cached())
        return AllocatorStats(
            num_blocks=self.num_blocks,
            free_blocks=len(self.free_blocks),
            cached_blocks=cached,
            used_blocks=used,
            num_requests=len(self.rows),
            **{
                name: self.totals[name]
                for name in ("hit_tokens", "prompt_tokens", "evictions", "copied_blocks", "collisions")
            },
        )

    def check(self) -> None:
        broken = []
        counted = Counter(block for row in self.rows.values() for block in row.table[row.num_null :])
        if counted != +self.references:
            broken.append(f"S1: reference counts {dict(+self.references)}, tables say {dict(counted)}")
        stats = self.stats()
        if stats.free_blocks + stats.cached_blocks + stats.used_blocks != self.num_blocks:
            broken.append(f"S1: counts do not sum: {stats}")
        if (
            set(self.free_blocks) & (set(counted) | set(self.content))
            or len(set(self.free_blocks)) != stats.free_blocks
        ):
            broken.append(f"S1: the free list holds a block twice, or one that is used or cached: {self.free_blocks}")
        if {block: self.holder_of.get(block_hash) for block, block_hash in self.hash_of.items()} != {
            b: b for b in self.content
        }:
            broken.append("S1: map from hashes and map from blocks differ")
        if broken:
            raise InvariantViolation("SlowAllocator: " + "; ".join(broken))

    def advance(self, now: float) -> None:
        self.now = now

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self.listener = listener
