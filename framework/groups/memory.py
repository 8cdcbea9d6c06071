"""What groups of KV keep, found by content; how they share memory is for subclasses to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from framework.errors import InvalidArgument
from framework.groups.pool import ROOT, Clock, Node, Pool
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import GroupHit, KVGroup, alignment, find_hit
from framework.types import BlockId

Policies = Callable[[int], EvictionPolicy]
"""Makes a fresh policy for a pool of so many blocks: one for each order that a way of sharing keeps."""
Path = Sequence[Node] | dict[int, Node]
"""The nodes of a prompt's prefixes, by their units less one; of a dict only those that are read."""


class Prefixes(dict[Node, Node]):
    """The prefix one unit shorter of every prefix that a resident content stands for or goes on from."""

    def __init__(self) -> None:
        self._uses: dict[Node, int] = {}  # contents that stand for a prefix, and prefixes one unit longer

    def hold(self, path: Path, at: int) -> None:
        """A content for the prefix `path[at]` is resident, once more."""
        node, uses = path[at], self._uses
        uses[node] = uses.get(node, 0) + 1
        while node not in self:
            self[node] = above = path[at - 1] if at else ROOT
            if not at:
                return
            at, node = at - 1, above
            uses[node] = uses.get(node, 0) + 1

    def drop(self, node: Node) -> None:
        """A content for this prefix is gone."""
        while node != ROOT:
            self._uses[node] -= 1
            if self._uses[node]:
                return
            del self._uses[node]
            node = self.pop(node)


class Memory(ABC):
    """Blocks of all groups: found by content, taken, published, used and let go. A plugin, chosen by `cache.memory`.

    A block is named by its group and its number in the pool of that group. Content is named by its group and a node,
    which stands for a prefix of whole units. A subclass says which pools there are: `make_pools`.

    Attributes:
        groups: of the model. step: tokens of which a hit is a multiple.
        pools: (G,) the pool of each group; one pool may serve several.
        merge: whether a block whose content is resident already gives way to the resident one when published.
        evictions: (G,) contents given up.
        listener: receives every CacheEvent, of one block each; None: nobody does.
    """

    merge = True
    equal_pages: ClassVar[bool] = False
    """Whether all groups take blocks of equal bytes from one pool: they are then given groups of equally many layers,
    and of a model that is served an attention block grows until it holds a state."""
    splits_pages: ClassVar[bool] = False
    """Whether the groups' pools lie in the same pages, each of which is split into blocks of one group."""
    per_page: Sequence[int] = ()
    """Of a memory that `splits_pages`, once it is open: (G,) blocks of each group a page; block 1 begins the first."""

    @abstractmethod
    def make_pools(self, policy: Policies, *, num_bytes: int, num_blocks: Sequence[int]) -> Sequence[Pool]:
        """The pool of each group, in order; one for all where they share it.

        Args:
            num_bytes: of all groups. num_blocks: (G,) of each, where it has a pool of its own.
        """

    def open(
        self, groups: Sequence[KVGroup], policy: Policies, *, num_bytes: int = 0, num_blocks: Sequence[int] = (),
        unit: int, parents: Sequence[int] | dict[int, int] | None = None,
    ) -> Self:  # fmt: skip
        """Make the pools; once, before all else. Returns itself.

        Args:
            num_bytes, num_blocks: see `make_pools`. unit: tokens a node adds.
            parents: of each node the one that is a unit shorter, ROOT of the first, where nodes are a trace's numbers.
                None: they become known with the contents, and are forgotten with them.

        Raises:
            InvalidArgument: blocks that are no multiples of the unit, or that the subclass cannot share.
        """
        self.groups, self.step, self.unit = tuple(groups), alignment(groups), unit
        self._prefixes = Prefixes() if parents is None else None
        self.parents: Sequence[int] | dict[Node, Node] = self._prefixes if parents is None else parents  # type: ignore[assignment]
        if any(group.block_tokens % unit for group in groups):
            raise InvalidArgument(f"blocks must be multiples of {unit} tokens, as the trace's are, found "
                                  f"{[group.block_tokens for group in groups]}")  # fmt: skip
        self.clock = Clock()
        self.evictions = [0] * len(groups)
        self.listener: Callable[[CacheEvent], Any] | None = None
        pools = self.make_pools(policy, num_bytes=num_bytes, num_blocks=num_blocks)
        self.pools = (*pools,) * len(self.groups) if len(pools) == 1 else (*pools,)
        self._partnered = any(pool.needs_groups for pool in pools)
        for pool in pools:
            pool.on_evict = partial(self._gone, pool)
            facts = {"resume": self._resumes, "replay_cost": self._replay_cost, "above": self._above,
                     "branches": self._branches}  # fmt: skip
            pool.attach(**{name: partial(fact, pool) for name, fact in facts.items()})
        return self

    def take(self, group: int, count: int) -> list[int]:
        """`count` blocks of a group, in use once. Raises OutOfBlocks, with nothing changed."""
        return self.pools[group].take(count)

    def find(self, group: int, node: Node) -> int:
        """The block that holds this content; 0 for none."""
        return self.pools[group].find(group, node)

    def hit(self, path: Sequence[Node], limit: int) -> GroupHit:
        """The hit of a prompt with these nodes, at most `limit` tokens. Pure."""
        wide, finds = [group.block_tokens // self.unit for group in self.groups], [pool.find for pool in self.pools]

        def present(group: int, block: int) -> bool:
            position = (block + 1) * wide[group] - 1
            return position < len(path) and finds[group](group, path[position]) > 0

        return find_hit(self.groups, present, limit)

    def holders(self, path: Sequence[Node], tokens: int) -> list[list[int]]:
        """By group, the blocks that a hit of `tokens` on this path needs."""
        wide = [group.block_tokens // self.unit for group in self.groups]
        return [[self.find(g, path[(number + 1) * wide[g] - 1])
                 for number in range(group.first(tokens), tokens // group.block_tokens)]
                for g, group in enumerate(self.groups)]  # fmt: skip

    def fits(self, counts: Sequence[int], used_blocks: Sequence[Sequence[int]] = ()) -> bool:
        """Whether so many blocks of each group can be taken once these, by group, are in use. Pure."""
        for pool in dict.fromkeys(self.pools):
            members = [g for g, other in enumerate(self.pools) if other is pool]
            idle = sum(not pool.ref[block] for g in members for block in used_blocks[g]) if used_blocks else 0
            if sum(counts[g] for g in members) + idle > len(pool.free) + pool.unreferenced:
                return False
        return True

    def holder(self, group: int, path: Path, number: int) -> int:
        """Who is used for the group's block `number` of this path instead of one that is published; 0: nobody."""
        return self.find(group, path[(number + 1) * self.groups[group].block_tokens // self.unit - 1]) * self.merge

    def publish(self, group: int, block: int, path: Path, number: int) -> int:
        """The group's block `number` of this path is complete. Returns the block that holds it from now on.

        Of `path` the prefixes that end with this block and with the one before it are read; all shorter ones, too,
        where `parents` were not given.
        """
        shape, pool = self.groups[group], self.pools[group]
        wide = shape.block_tokens // self.unit
        node, above = path[(number + 1) * wide - 1], path[number * wide - 1] if number else ROOT
        if holder := self.holder(group, path, number):
            pool.pin((holder,), hit=False)
            pool.release((block,))
            return holder
        pool.publish(block, group, node, parent=above, end=(number + 1) * shape.block_tokens, depth=number,
                     num_bytes=shape.block_bytes)  # fmt: skip
        if self._prefixes is not None:
            self._prefixes.hold(path, (number + 1) * wide - 1)
        if self.listener is not None:
            self.listener(CacheEvent("admit", (BlockId(block),), (node,), group))
        if self._partnered:
            partners = self.partners_of(group, node)
            pool.partners[block] = len({other for other, _ in partners})
            self._tell(group, node, partners, +1)
        return block

    def _gone(self, pool: Pool, block: int) -> None:
        group, node = pool.group[block], pool.node[block]
        self.evictions[group] += not pool.ref[block]
        if self.listener is not None:
            self.listener(CacheEvent("evict", (BlockId(block),), (node,), group))
        self.evicted(group, node)
        if self._prefixes is not None:
            self._prefixes.drop(node)

    def evicted(self, group: int, node: Node) -> None:
        """Content of a group is about to go; what else goes with it is for subclasses to say."""
        if self._partnered:
            self._tell(group, node, self.partners_of(group, node), -1)

    def _tell(self, group: int, node: Node, partners: Sequence[tuple[int, int]], by: int) -> None:
        """Partners gain or lose this group, unless another copy of the content is resident."""
        if len(self.pools[group].index[group, node]) == 1:
            for other, partner in partners:
                self.pools[other].partners_changed(partner, by)

    def partners_of(self, group: int, node: Node) -> list[tuple[int, int]]:
        """(group, block) of every other group's block that ends where this content does."""
        return [(other, partner) for other in range(len(self.groups)) if other != group
                for partner in self.pools[other].index.get((other, node), ())]  # fmt: skip

    def path_to(self, node: Node) -> list[Node]:
        """All nodes from the root to this one."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def _resumes(self, pool: Pool, block: int) -> bool:
        return self.hit(self.path_to(pool.node[block]), pool.end[block]).tokens == pool.end[block]

    def _replay_cost(self, pool: Pool, block: int) -> int:
        end = pool.end[block]
        return end - self.hit(self.path_to(pool.node[block]), end - 1).tokens

    def _above(self, pool: Pool, block: int) -> int:
        group, node, found = pool.group[block], self.parents[pool.node[block]], 0
        while node != ROOT and not found:
            node, found = self.parents[node], pool.find(group, node)
        return found

    def _branches(self, pool: Pool, block: int) -> int:
        full = (g for g, group in enumerate(self.groups) if group.kind == "full")
        return max((self.pools[g].children[self.find(g, pool.node[block])] for g in full), default=0)

    def resident(self) -> list[tuple[int, Node]]:
        """(group, node) of every content that can be found."""
        return [key for pool in dict.fromkeys(self.pools) for key in pool.index]
