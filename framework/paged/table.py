"""What a paged allocator keeps of one request."""

from __future__ import annotations

from array import array
from typing import NoReturn

import numpy as np

from framework.errors import InvalidArgument
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestInfo, TableChange, TokenArray


class Table:
    """One request's blocks, and how far they are written and published.

    Attributes:
        blocks: block ids in logical order; 0 for the first `num_null`.
        root, anchor: what the namespace's first blocks hang below, as a hash and as a node of the index.
        committed: leading tokens whose KV is written.
        published: leading blocks that lookups can find, or could when they were unreferenced.
        num_null: leading blocks that were unreferenced since no layer reads them any more.
        hashes: of the leading full blocks as far as they are known; a prompt's are from the start.
        held: the known tokens as int32 bytes: the prompt, and what was committed since.
        closed: nothing more is published: a collision, or a reset, cut the chain.
        facts: what a policy may read of the request; unknown unless it asks.
        shared: a block from the committed length on may be shared; `extend` looks.
    """

    __slots__ = (
        "anchor", "blocks", "closed", "committed", "facts", "hashes", "held", "num_null", "published", "request",
        "root", "shared", "tenant",
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
        self.held = bytearray()
        self.closed = False
        self.shared = False
        self.facts = UNKNOWN_REQUEST

    def refuse(self, tokens: TokenArray) -> NoReturn:
        """Raise for int32 tokens, the request's first, that differ from those known.

        Raises:
            InvalidArgument: names the first position that differs.
        """
        ours = np.frombuffer(bytes(self.held), dtype=np.int32)[: len(tokens)]
        at = int(np.argmax(ours != tokens[: len(ours)]))
        raise InvalidArgument(
            f"commit of request {self.request.id}: token {at} is {tokens[at]}, it was {ours[at]} before"
        )

    def child(
        self, request: RequestInfo, blocks: array[int], tenant: int, num_tokens: int, full: int, kept: int
    ) -> Table:
        """The table of a fork at `num_tokens`, which fill `full` blocks; it shares the first `kept` of `blocks`."""
        table = Table(request, blocks, self.root, self.anchor, tenant)
        table.committed = num_tokens
        table.hashes = self.hashes[:full]
        table.held = self.held[: 4 * num_tokens]
        table.published = min(self.published, full, kept)
        table.num_null = self.num_null
        table.closed = self.closed or 0 < self.num_null >= table.published  # nothing to publish the next block below
        return table


class TableChanges:
    """Changes without copies, one for each first index. Frozen and costly to make, so each is made once."""

    def __init__(self) -> None:
        self._made: list[TableChange] = []

    def without_copies(self, start: int) -> TableChange:
        """The change of a table from logical index `start` on."""
        try:
            return self._made[start]
        except IndexError:
            self._made += [TableChange(at) for at in range(len(self._made), 2 * start + 1)]
            return self._made[start]


def count_of(name: str, value: object, least: int) -> int:
    """`value`, if it is an integer of at least `least`.

    Raises:
        InvalidArgument: a bool, a float, anything else, or too small.
    """
    if (type(value) is int or isinstance(value, np.integer)) and value >= least:
        return int(value)
    raise InvalidArgument(f"{name} must be an integer of at least {least}, found {value!r}")
