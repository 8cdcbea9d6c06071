"""What a paged allocator keeps of its requests: their tables, and the blocks that a step has yet to compute."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NoReturn

import numpy as np

from framework.errors import InvalidArgument
from framework.paged.cache import BlockCache
from framework.paged.pool import LastRequests
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestId, RequestInfo, TableChange, TokenArray


class Table:
    """One request's blocks, and how far they are written and published.

    Attributes:
        blocks: block ids in logical order; 0 for the first `num_null`.
        root, anchor: what the namespace's first blocks hang below, as a hash and as a node of the index.
        committed: leading tokens whose KV is written.
        published: leading blocks that lookups can find, or could when they were unreferenced.
        num_null: leading blocks that were unreferenced since no layer reads them any more.
        hashes: of the leading full blocks as far as they are known; a prompt's are from the start.
        token_bytes: the known tokens as int32: the prompt, and what was committed since.
        closed: nothing more is published: a collision, or a reset, cut the chain.
        facts: what a policy may read of the request; unknown unless it asks.
        shared: a block from the committed length on may be shared; `extend` looks.
    """

    __slots__ = (
        "anchor", "blocks", "closed", "committed", "facts", "hashes", "num_null", "published", "request",
        "root", "shared", "tenant", "token_bytes",
    )  # fmt: skip

    def __init__(self, request: RequestInfo, blocks: array[int], root: BlockHash, anchor: int, tenant: int) -> None:
        self.request = request
        self.blocks = blocks
        self.root = root
        self.anchor = anchor
        self.tenant = tenant
        self.committed = 0
        self.published = 0
        self.num_null = 0
        self.hashes: list[BlockHash] = []
        self.token_bytes = bytearray()
        self.closed = False
        self.shared = False
        self.facts = UNKNOWN_REQUEST

    def refuse(self, tokens: TokenArray) -> NoReturn:
        """Raise for int32 tokens, the request's first, that differ from those known.

        Raises:
            InvalidArgument: names the first position that differs.
        """
        ours = np.frombuffer(bytes(self.token_bytes), dtype=np.int32)[: len(tokens)]
        position = int(np.argmax(ours != tokens[: len(ours)]))
        raise InvalidArgument(
            f"commit of request {self.request.id}: token {position} is {tokens[position]}, it was "
            f"{ours[position]} before"
        )

    def child(
        self, request: RequestInfo, blocks: array[int], tenant: int, num_tokens: int, full: int, kept: int
    ) -> Table:
        """The table of a fork at `num_tokens`, which fill `full` blocks; it shares the first `kept` of `blocks`."""
        table = Table(request, blocks, self.root, self.anchor, tenant)
        table.committed = num_tokens
        table.hashes = self.hashes[:full]
        table.token_bytes = self.token_bytes[: 4 * num_tokens]
        table.published = min(self.published, full, kept)
        table.num_null = self.num_null
        table.closed = self.closed or 0 < self.num_null >= table.published  # nothing to publish the next block below
        return table


without_copies: Callable[[int], TableChange] = cache(TableChange)
"""The change of a table from a logical index on, without copies: frozen and costly to make, so each is made once."""


def count_of(name: str, value: object, least: int) -> int:
    """`value`, if it is an integer of at least `least`.

    Raises:
        InvalidArgument: a bool, a float, anything else, or too small.
    """
    if (type(value) is int or isinstance(value, np.integer)) and value >= least:
        return int(value)
    raise InvalidArgument(f"{name} must be an integer of at least {least}, found {value!r}")


class Promises:
    """Published blocks whose KV the step being scheduled has yet to compute: whose they are, and who relies on them.

    NOTE 1. A promise lasts one step: `promise` makes it, the step's commit (`keep_all`) keeps it, `withdraw_all` takes
    it back. Outside a step there are none, so all methods return at once then.
    NOTE 2. A withdrawal spreads. Whoever relies on a block that nobody will compute has itself promised blocks below
    it, and others may rely on those.

    Args:
        tables: the allocator's, live.
        requests: the last request of each block, where the policy asks for it.

    Attributes:
        owner: of each promised block, the request that computes it.
        broken: requests whose tables name a block of which the promise was withdrawn, as keys. They can only be freed.
    """

    __slots__ = ("_cache", "_made", "_readers", "_requests", "_tables", "broken", "owner")

    def __init__(
        self, cache: BlockCache, tables: Mapping[RequestId, Table], requests: LastRequests | None = None
    ) -> None:
        self._cache, self._tables, self._requests = cache, tables, requests
        self.owner: dict[int, RequestId] = {}
        self.broken: dict[RequestId, None] = {}
        self._made: dict[RequestId, dict[int, None]] = {}
        self._readers: dict[RequestId, dict[RequestId, None]] = {}  # owner -> who relies on it, in order

    def __bool__(self) -> bool:
        return bool(self.owner or self.broken)

    def promise(self, table: Table, num_tokens: int) -> bool:
        """Publish the blocks that the table's first `num_tokens` fill; whether there were any to publish."""
        pool, first = self._cache.pool, table.published
        full = num_tokens // pool.block_size
        if table.closed or table.shared or full <= first:
            return False
        size, hashes, request = 4 * pool.block_size, table.hashes[first:full], table.request
        data, parent = bytes(table.token_bytes[first * size : full * size]), table.blocks[first - 1] if first else 0
        count = self._cache.index.count_new(table.anchor, parent, hashes, data)
        if not count:
            return False
        pool.access += 1
        if self._requests is not None:
            self._requests.used(table.blocks[first : first + count], table.facts)
        self._cache.publish(table.anchor, table.blocks, first, hashes[:count], data, request.priority, table.tenant)
        table.published += count
        blocks = table.blocks[first : table.published]
        self._made.setdefault(request.id, {}).update(dict.fromkeys(blocks))
        self.owner.update(dict.fromkeys(blocks, request.id))
        return True

    def rely(self, request: RequestId, blocks: Iterable[int]) -> None:
        """`request`, which has a new table, shares these blocks."""
        for owner in {owner: None for block in blocks if (owner := self.owner.get(block)) is not None}:
            self._readers.setdefault(owner, {})[request] = None

    def readers(self, owner: RequestId) -> Iterable[RequestId]:
        """The requests that rely on what `owner` promised."""
        return self._readers.get(owner, ())

    def first_of_others(self, table: Table, hashes: Sequence[BlockHash], tokens: TokenArray, full: int) -> int:
        """Of the table's first `full` contents, the first that another request has promised; `full` if there is none.

        Who has computed such a content keeps its own block until the other one is computed.
        """
        found = self._cache.index.find(table.anchor, hashes, tokens.tobytes(), full)
        return next(
            (index for index, block in enumerate(found) if block in self.owner and block != table.blocks[index]), full
        )

    def keep_all(self, table: Table, num_tokens: int) -> None:
        """The KV of the table's first `num_tokens` was computed.

        Raises:
            InvalidArgument: a broken table.
        """
        self.require_sound(table)
        size = self._cache.pool.block_size
        for block in table.blocks[: num_tokens // size]:
            request = self.owner.get(block)
            if request is None:
                continue
            made, owner = self._made[request], self._tables[request]
            for kept in list(made):  # in order: what is above a kept block was computed too
                del made[kept], self.owner[kept]
                if kept == block:
                    break
            owner.committed = max(owner.committed, (owner.published - len(made)) * size)
            if not made:
                del self._made[request]
                self._readers.pop(request, None)

    def _withdraw(self, request: RequestId) -> list[int]:
        """Forget what `request` promised, and what was promised in reliance on it: whoever relied on it is `broken`.

        Returns the blocks, ancestors first.
        """
        blocks: list[int] = []
        left = [request]
        for owner in left:
            blocks += self._made.pop(owner, ())
            relying = self._readers.pop(owner, {})
            left += [reader for reader in relying if reader not in self.broken]
            self.broken.update(relying)
        for block in blocks:
            del self.owner[block]
        return blocks

    def withdraw_every(self) -> None:
        """Forget all promises: everything is being unpublished."""
        for request in list(self._made):
            self._withdraw(request)

    def withdraw_all(self, table: Table) -> None:
        """Unpublish what the table's request promised and what relied on it."""
        blocks = self._withdraw(table.request.id)
        if not blocks:
            return
        gone, pool = {*blocks}, self._cache.pool
        for affected in (table, *(self._tables[reader] for reader in self.broken)):
            known = affected.blocks[: affected.published]
            affected.published = next((index for index, block in enumerate(known) if block in gone), affected.published)
        pool.access += 1
        self._cache.unpublish(blocks[::-1])

    def end(self, table: Table) -> None:
        """The table is about to be freed: it relies on nobody any more, and nobody on it."""
        request = table.request.id
        self.broken.pop(request, None)
        for readers in self._readers.values():
            readers.pop(request, None)
        self.withdraw_all(table)

    def require_sound(self, table: Table) -> None:
        """Refuse a table with blocks that nobody computed.

        Raises:
            InvalidArgument.
        """
        if table.request.id in self.broken:
            raise InvalidArgument(
                f"request {table.request.id} shares blocks that were promised and not computed; it can only be freed"
            )
