"""A prefix-sharing, copy-on-write allocator written for reading and not for speed.

Dicts and lists, every fact in one place, every step O(n). The conformance kits run it as a second implementation, and
the mutants that the kits must catch are subclasses that break one method each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import (
    DuplicateRequest,
    InvalidArgument,
    NoCandidate,
    OutOfBlocks,
    PluginError,
    StaleHit,
    UnknownRequest,
)
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.interfaces.hash import HashScheme
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

Content = tuple[Namespace, tuple[int, ...]]
"""What a full block means: its namespace and every token from the root to the block's end."""


@dataclass
class Row:
    """One request: its table, committed and known tokens, whether its KV predates a reset, and how many
    leading entries of the table are null since nothing reads them any more.
    """

    info: RequestInfo
    table: list[int] = field(default_factory=list)
    committed: int = 0
    tokens: tuple[int, ...] = ()
    stale: bool = False
    num_null: int = 0


class SlowPool:
    """Blocks, their contents and hashes; the policy is called at every move. Every step O(n).

    Of the facts of blocks it keeps those that the slow policies read: depth, admitted, last_access.
    """

    def __init__(self, num_blocks: int, block_size: int, hash: HashScheme, eviction: EvictionPolicy) -> None:
        if num_blocks < 1 or block_size < 1:
            raise InvalidArgument(f"num_blocks and block_size must be at least 1, found {num_blocks}, {block_size}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.hash, self.policy = hash, eviction
        self.rows: dict[RequestId, Row] = {}
        self.references: Counter[int] = Counter()
        self.free_blocks = list(range(num_blocks, 0, -1))
        self.content: dict[int, Content] = {}
        self.hash_of: dict[int, BlockHash] = {}
        self.holder_of: dict[BlockHash, int] = {}
        self.totals: Counter[str] = Counter()
        self.version, self.accesses, self.now = 0, 0, 0.0
        self.listener: Callable[[CacheEvent], Any] | None = None
        self.columns: dict[str, Any] = {name: [0] * (num_blocks + 1) for name in BlockView.__dataclass_fields__}
        eviction.attach(BlockView(**self.columns))

    def cached(self) -> list[int]:
        """Published blocks that no table names."""
        return [block for block in self.content if not self.references[block]]

    def find(self, block_hash: BlockHash, content: Content) -> int | None:
        """The published block of this hash whose whole prefix is `content`."""
        block = self.holder_of.get(block_hash)
        if block is None:
            return None
        return block if self.content[block] == content else None

    def hashes(self, tokens: TokenArray, namespace: Namespace) -> list[BlockHash]:
        """The chained hashes of all full blocks."""
        read_only = tokens.copy()
        read_only.flags.writeable = False
        try:
            root = self.hash.root(namespace, self.block_size)
            hashes = [root, *self.hash.blocks(root, read_only, self.block_size)]
        except Exception as error:
            raise PluginError(f"{type(self.hash).__name__} raised {error!r}") from error
        if (
            not all(type(block_hash) is bytes for block_hash in hashes)
            or len(hashes) != 1 + len(tokens) // self.block_size
        ):
            raise PluginError(f"{type(self.hash).__name__} must give one hash (bytes) a full block, gave {hashes}")
        return hashes[1:]

    def room(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def row(self, request: RequestId) -> Row:
        """The live row, or UnknownRequest."""
        if request not in self.rows:
            raise UnknownRequest(f"request {request} holds no table: never allocated, or freed before")
        return self.rows[request]

    def changed(self) -> None:
        """Every hit looked up before is stale now."""
        self.version += 1
        self.accesses += 1

    def touch(self, blocks: tuple[BlockId, ...]) -> None:
        """Note the access."""
        for block in blocks:
            self.columns["last_access"][block] = self.accesses

    def share(self, blocks: tuple[BlockId, ...], *, hits: bool) -> None:
        """One more table names these blocks."""
        candidates = [block for block in blocks[::-1] if not self.references[block]]
        self.touch(blocks)
        for block in blocks:
            self.references[block] += 1
        if candidates:
            self.policy.pin(candidates, self.now)
        if hits and blocks:
            self.policy.hit(blocks[::-1], self.now)

    def drop(self, blocks: list[Any]) -> None:
        """One table fewer names these blocks, deepest first."""
        released = []
        for block in blocks:
            self.references[block] -= 1
            if not self.references[block]:
                if block in self.content:
                    released.append(block)
                else:
                    self.free_blocks.append(block)
        if released:
            self.touch(tuple(released))
            self.policy.release(released, self.now)

    def take(self, count: int) -> list[int]:
        """`count` blocks for one table, evicting as needed. The caller has checked that they exist."""
        while len(self.free_blocks) < count:
            self.evict()
        blocks = [self.free_blocks.pop() for _ in range(count)]
        for block in blocks:
            self.references[block] += 1
        return blocks

    def evict(self) -> None:
        """Ask the policy for a victim, and judge the answer."""
        policy_name = type(self.policy).__name__
        try:
            block = self.policy.victim(self.now)
        except NoCandidate as error:
            raise PluginError(f"{policy_name}.victim: no candidate, but {self.cached()} are cached") from error
        except Exception as error:
            raise PluginError(f"{policy_name}.victim raised {error!r}") from error
        if type(block) not in (int, np.int32, np.int64) or block not in self.cached():
            raise PluginError(
                f"{policy_name}.victim returned {block!r}, which is no candidate: {sorted(self.cached())}"
            )
        self.forget(int(block))
        self.free_blocks.append(int(block))
        self.totals["evictions"] += 1

    def forget(self, block: int) -> None:
        """The block's content can be found no longer."""
        self.send("evict", block)
        del self.holder_of[self.hash_of.pop(block)]
        del self.content[block]
        self.policy.evicted(BlockId(block), self.now)

    def publish(self, row: Row, index: int, block_hash: BlockHash, content: Content) -> None:
        """The block's content can be found from here on."""
        block = row.table[index]
        self.content[block], self.hash_of[block], self.holder_of[block_hash] = content, block_hash, block
        self.columns["depth"][block], self.columns["admitted"][block] = index, self.accesses
        self.touch((BlockId(block),))
        self.send("admit", block)

    def swap(self, row: Row, index: int, twin: int) -> None:
        """Use the published block of equal content; give the own copy back."""
        own_block, row.table[index] = row.table[index], twin
        self.share((BlockId(twin),), hits=False)
        self.drop([own_block])

    def send(self, kind: str, block: int) -> None:
        """One line of the event log."""
        if self.listener is not None:
            self.listener(CacheEvent(kind, (BlockId(block),), (self.hash_of[block],)))


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

    def reclaimable(self, keep: tuple[BlockId, ...] = ()) -> int:
        """Free blocks, and cached ones that are not in `keep`."""
        return len(self.free_blocks) + len(set(self.cached()) - set(keep))

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        return np.array(self.row(request).table, dtype=np.int32)

    # The life of a request

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        if request.id in self.rows:
            raise DuplicateRequest(f"request {request.id} holds a table already")
        if hit.version != self.version:
            raise StaleHit(f"hit of version {hit.version}, the pool is at {self.version}; look it up again")
        if not self.fits(request, tokens, hit):
            raise OutOfBlocks(f"need {self.room(len(tokens)) - len(hit.blocks)} blocks, have {self.reclaimable()}")
        self.share(hit.blocks, hits=True)
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
        self.share(blocks[row.num_null :], hits=False)
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

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        row = self.row(request)
        del self.rows[request]
        self.drop(row.table[row.num_null :][::-1])
        self.changed()

    def reset(self, request: RequestId | None = None) -> None:
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
        """Nothing: the kits must see each fault from outside."""

    def advance(self, now: float) -> None:
        self.now = now

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self.listener = listener
