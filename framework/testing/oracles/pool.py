"""The pool half of the slow allocator: which content is where, and moves of single blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from framework.errors import (
    InvalidArgument,
    NoCandidate,
    PluginError,
    UnknownRequest,
)
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.types import (
    UNKNOWN_REQUEST,
    BlockHash,
    BlockId,
    Namespace,
    RequestId,
    RequestInfo,
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
    """Blocks, their contents and hashes; the policy is called at every move. Every step O(n)."""

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
        columns: dict[str, list[Any]] = {
            column: [0] * (num_blocks + 1)
            for column in BlockView.__dataclass_fields__
            if column not in ("key", "next_use", "partial", "last_request")
        }
        self.last_request = [UNKNOWN_REQUEST] * (num_blocks + 1)
        self.view = BlockView(
            **columns,
            next_use=[float("inf")] * (num_blocks + 1),
            key=[None] * (num_blocks + 1),
            partial=[False] * (num_blocks + 1),
            last_request=self.last_request,
        )
        self.columns = columns
        eviction.attach(self.view)

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
        own = tokens.copy()
        own.flags.writeable = False
        try:
            root = self.hash.root(namespace, self.block_size)
            hashes = [root, *self.hash.blocks(root, own, self.block_size)]
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

    def share(self, blocks: tuple[BlockId, ...], request: RequestInfo, *, hits: bool) -> None:
        """One more table names these blocks."""
        candidates = [block for block in blocks[::-1] if not self.references[block]]
        self.touch(blocks)
        for block in blocks:
            self.references[block] += 1
            self.columns["hits"][block] += hits
            self.columns["priority"][block] = max(self.columns["priority"][block], request.priority)
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
        who = type(self.policy).__name__
        try:
            block = self.policy.victim(self.now)
        except NoCandidate as error:
            raise PluginError(f"{who}.victim: no candidate, but {self.cached()} are cached") from error
        except Exception as error:
            raise PluginError(f"{who}.victim raised {error!r}") from error
        if type(block) not in (int, np.int32, np.int64) or block not in self.cached():
            raise PluginError(f"{who}.victim returned {block!r}, which is no candidate: {sorted(self.cached())}")
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
        facts = {"depth": index, "num_tokens": len(content[1]), "admitted": self.accesses, "hits": 0, "children": 0}
        for column, value in facts.items():
            self.columns[column][block] = value
        self.columns["priority"][block] = row.info.priority
        self.touch((BlockId(block),))
        self.view.key[block] = block_hash  # type: ignore[index]
        self.send("admit", block)

    def swap(self, row: Row, index: int, twin: int) -> None:
        """Use the published block of equal content; give the own copy back."""
        own, row.table[index] = row.table[index], twin
        self.share((BlockId(twin),), row.info, hits=False)
        self.drop([own])

    def send(self, kind: str, block: int) -> None:
        """One line of the event log."""
        if self.listener is not None:
            self.listener(CacheEvent(kind, BlockId(block), self.hash_of[block], self.now))
