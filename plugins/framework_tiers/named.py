"""Contents under an eviction policy, which knows them by the numbers of their blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from framework.errors import InvalidArgument, OutOfBlocks
from framework.guard.policy import PolicyHost
from framework.interfaces.eviction import ComputedColumn, ConstantColumn, EvictionPolicy, SizedView

Name = Any
"""Names a content: hashable, unique among those held."""


class NamedBlocks:
    """At most `num_blocks` contents, which the policy knows by the numbers of their blocks.

    Args:
        policy: fresh; `attach` it before anything else.
        most: contents that can exist at all, where that is known: no more rows are kept than that.

    Attributes:
        block_of, name_of: of each content held, its block; of each block, its content.
        admitted, last_access, hits: columns of BlockView.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int, most: int | None = None) -> None:
        rows = min(num_blocks, num_blocks if most is None else most) + 1
        self.num_blocks = num_blocks
        self.host = PolicyHost(policy, bytearray(rows))
        self.block_of: dict[Name, int] = {}
        self.name_of: list[Name] = [None] * rows
        self.admitted: list[Any] = [0] * rows
        self.last_access: list[Any] = [0] * rows
        self.hits = [0] * rows
        self.free = array("i", range(rows - 1, 0, -1))

    def attach(self, **columns: Sequence[Any]) -> None:
        """Give the policy its view: `columns` and those kept here; what is left out is 0, or never used again."""
        rows = len(self.name_of)
        zeros = dict.fromkeys(("depth", "num_tokens", "priority", "tenant", "children"), ConstantColumn(0, rows))
        given: dict[str, Any] = zeros | {"next_use": ConstantColumn(float("inf"), rows)} | columns
        kept: dict[str, Any] = {"admitted": self.admitted, "last_access": self.last_access, "hits": self.hits}
        self.host.policy.attach(SizedView(capacity=self.num_blocks, **kept, **given))

    def by_name(self, fact: Callable[[Name], Any]) -> Sequence[Any]:
        """A column of what is known of a content, whatever its block."""
        name_of = self.name_of
        return ComputedColumn(lambda block: fact(name_of[block]), len(name_of))

    def hold(self, name: Name, access: int) -> int:
        """Give a new content its block, which the policy does not know yet.

        Raises:
            InvalidArgument: it is held already.
            OutOfBlocks: there is no block for it.
        """
        if name in self.block_of:
            raise InvalidArgument(f"{name!r} is held already; insert a content once, until it is gone")
        if not self.free:
            raise OutOfBlocks(f"{name!r} is one more than the {len(self.name_of) - 1} blocks announced; announce more")
        block = self.free.pop()
        self.block_of[name], self.name_of[block] = block, name
        self.admitted[block] = self.last_access[block] = access
        self.hits[block] = 0
        return block

    def forget(self, name: Name) -> None:
        """A content is gone: the policy gets `evicted`, and its block is free."""
        block = self.block_of[name]
        self.host.drop(block)
        del self.block_of[name]
        self.name_of[block] = None
        self.free.append(block)
