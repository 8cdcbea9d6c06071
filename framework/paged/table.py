"""What an allocator keeps of its requests: their tables."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache
from typing import NoReturn, TypeVar

import numpy as np

from framework.errors import DuplicateRequest, InvalidArgument, StaleHit, UnknownRequest
from framework.interfaces.allocator import Hit
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestId, RequestInfo, TableChange, TokenArray

T = TypeVar("T")


class Tables(dict[RequestId, T]):
    """What an allocator keeps of each live request, by its id; reading one that is not there raises UnknownRequest."""

    def __missing__(self, request: RequestId) -> T:
        raise UnknownRequest(
            f"request {request!r} holds no table: never allocated, or freed before; {len(self)} do"
        ) from None

    def check_new(self, request: RequestInfo) -> None:
        """Refuse an id that is no number, or that is here.

        Raises:
            InvalidArgument, DuplicateRequest.
        """
        count_of("a request id", request.id, 0)
        if request.id in self:
            raise DuplicateRequest(f"request {request.id} holds a table already; free it first")


def check_version(request: RequestInfo, hit: Hit, version: int) -> None:
    """Refuse a hit of another version of the allocator than its present one.

    Raises:
        StaleHit.
    """
    if hit.version != version:
        raise StaleHit(
            f"the hit for request {request.id} is of version {hit.version}, the allocator is at {version}; look it up "
            "again"
        )


class Table:
    """One request's blocks, and how far they are written and published.

    Attributes:
        blocks: block ids in logical order; 0 for the first `num_null`.
        root, anchor: what the namespace's first blocks hang below, as a hash and as a node of the index.
        committed: leading tokens whose KV is written.
        published: leading blocks that lookups can find, or could when they were unreferenced. More than are committed
            where the step at hand computes the rest.
        removed: of the committed tokens, those that were dropped: the others have the first slots.
        dropped_at: tokens that were committed when some were last dropped.
        num_null: leading blocks that were unreferenced since no layer reads them any more.
        hashes: of the leading full blocks as far as they are known; a prompt's are from the start.
        token_bytes: the known tokens as int32: the prompt, and what was committed since.
        closed: nothing more is published: a collision, or a reset, cut the chain.
        facts: what a policy may read of the request; unknown unless it asks.
        shared: a block from the committed length on may be shared; `extend` looks.
    """

    __slots__ = (
        "anchor", "blocks", "closed", "committed", "dropped_at", "facts", "hashes", "num_null", "published", "removed",
        "request", "root", "shared", "tenant", "token_bytes",
    )  # fmt: skip

    def __init__(self, request: RequestInfo, blocks: array[int], root: BlockHash, anchor: int, tenant: int) -> None:
        self.request = request
        self.blocks = blocks
        self.root = root
        self.anchor = anchor
        self.tenant = tenant
        self.committed = 0
        self.published = 0
        self.num_null = self.removed = self.dropped_at = 0
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
        table.num_null, table.removed, table.dropped_at = self.num_null, self.removed, self.dropped_at
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
