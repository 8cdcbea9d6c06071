"""Published blocks whose KV the step being scheduled has yet to compute, and the requests that share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from framework.errors import InvalidArgument
from framework.paged.cache import BlockCache
from framework.paged.last_requests import LastRequests
from framework.paged.table import Table
from framework.types import BlockHash, RequestId, TokenArray


class Promises:
    """Which blocks were promised, by whom, and who relies on it.

    NOTE 1. A promise lasts one step: `Allocator.promise` makes it, the step's `commit` keeps it, `Allocator.withdraw`
    takes it back. Outside a step there are none, so all methods return at once then.
    NOTE 2. A withdrawal spreads. Whoever relies on a block that nobody will compute has itself promised blocks below
    it, and others may rely on those.

    Attributes:
        owner: of each promised block, the request that computes it.
        broken: requests whose tables name a block of which the promise was withdrawn, as keys. They can only be freed.
    """

    __slots__ = ("_made", "_readers", "broken", "owner")

    def __init__(self) -> None:
        self.owner: dict[int, RequestId] = {}
        self.broken: dict[RequestId, None] = {}
        self._made: dict[RequestId, dict[int, None]] = {}
        self._readers: dict[RequestId, dict[RequestId, None]] = {}  # owner -> who relies on it, in order

    def __bool__(self) -> bool:
        return bool(self.owner or self.broken)

    def make(self, request: RequestId, blocks: Sequence[int]) -> None:
        """`request` computes these blocks, which were just published, in this step."""
        self._made.setdefault(request, {}).update(dict.fromkeys(blocks))
        self.owner.update(dict.fromkeys(blocks, request))

    def rely(self, request: RequestId, blocks: Iterable[int]) -> None:
        """`request`, which has a new table, shares these blocks."""
        for owner in {owner: None for block in blocks if (owner := self.owner.get(block)) is not None}:
            self._readers.setdefault(owner, {})[request] = None

    def keep(self, blocks: Iterable[int]) -> dict[RequestId, int]:
        """The KV of these blocks was computed. Returns how many of its blocks each owner promises still."""
        counts: dict[RequestId, int] = {}
        for block in blocks:
            owner = self.owner.pop(block, None)
            if owner is None:
                continue
            made = self._made[owner]
            del made[block]
            counts[owner] = len(made)
            if not made:
                del self._made[owner]
                self._readers.pop(owner, None)
        return counts

    def withdraw(self, request: RequestId) -> list[int]:
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
            self.withdraw(request)

    def readers(self, owner: RequestId) -> Iterable[RequestId]:
        """The requests that rely on what `owner` promised."""
        return self._readers.get(owner, ())

    def leave(self, request: RequestId) -> None:
        """`request` relies on nobody any more."""
        self.broken.pop(request, None)
        for readers in self._readers.values():
            readers.pop(request, None)


class TablePromises(Promises):
    """The promises among an allocator's tables, and what they mean for its cache.

    Args:
        tables: the allocator's, live.
        requests: the last request of each block, where the policy asks for it.
    """

    __slots__ = ("_cache", "_requests", "_tables")

    def __init__(
        self, cache: BlockCache, tables: Mapping[RequestId, Table], requests: LastRequests | None = None
    ) -> None:
        super().__init__()
        self._cache, self._tables, self._requests = cache, tables, requests

    def promise(self, table: Table, num_tokens: int) -> bool:
        """Publish the blocks that the table's first `num_tokens` fill; whether there were any to publish.

        Raises:
            PluginError: nothing changed.
        """
        pool, first = self._cache.pool, table.published
        full = num_tokens // pool.block_size
        if table.closed or table.shared or full <= first:
            return False
        size, hashes, request = 4 * pool.block_size, table.hashes[first:full], table.request
        data, parent = bytes(table.held[first * size : full * size]), table.blocks[first - 1] if first else 0
        count = self._cache.index.count_new(table.anchor, parent, hashes, data)
        if not count:
            return False
        pool.access += 1
        if self._requests is not None:
            self._requests.used(table.blocks[first : first + count], table.facts)
        self._cache.publish(table.anchor, table.blocks, first, hashes[:count], data, request.priority, table.tenant)
        table.published += count
        self.make(request.id, table.blocks[first : table.published])
        return True

    def first_of_others(self, table: Table, hashes: Sequence[BlockHash], tokens: TokenArray, full: int) -> int:
        """Of the table's first `full` contents, the first that another request has promised; `full` if there is none.

        Who has computed such a content keeps its own block until the other one is computed.
        """
        found = self._cache.index.find(table.anchor, hashes, tokens.tobytes(), full)
        return next((at for at, block in enumerate(found) if block in self.owner and block != table.blocks[at]), full)

    def keep_all(self, table: Table, num_tokens: int) -> None:
        """The KV of the table's first `num_tokens` was computed.

        Raises:
            InvalidArgument: a broken table.
        """
        self.require_sound(table)
        size = self._cache.pool.block_size
        for request, promised in self.keep(table.blocks[: num_tokens // size]).items():
            owner = self._tables[request]
            owner.committed = max(owner.committed, (owner.published - promised) * size)

    def withdraw_all(self, table: Table) -> None:
        """Unpublish what the table's request promised and what relied on it.

        Raises:
            PluginError: the policy failed; it is done nonetheless.
        """
        blocks = self.withdraw(table.request.id)
        if not blocks:
            return
        gone, pool = {*blocks}, self._cache.pool
        for held in (table, *(self._tables[reader] for reader in self.broken)):
            known = held.blocks[: held.published]
            held.published = next((at for at, block in enumerate(known) if block in gone), held.published)
        pool.access += 1
        self._cache.unpublish(blocks[::-1])

    def end(self, table: Table) -> None:
        """The table is about to be freed.

        Raises:
            PluginError: as `withdraw_all`.
        """
        self.leave(table.request.id)
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
