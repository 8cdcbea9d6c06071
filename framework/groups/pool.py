"""Blocks of one size behind one eviction policy: contents by group, reference counts, and the columns policies read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from framework.errors import OutOfBlocks, Unsupported
from framework.guard.policy import PolicyHost
from framework.interfaces.eviction import BlockView, ComputedColumn, ConstantColumn, EvictionPolicy
from framework.types import UNKNOWN_REQUEST, BlockHash, PolicyTime, RequestFacts

UNKNOWN = ConstantColumn(None)
Node = Any
"""Names a prefix of whole units: the chained hash of its last block, or a number of a trace's prefixes. Hashable."""
ROOT = -1
"""Above the first unit's prefix; and of a block without content."""


@dataclass(frozen=True, slots=True)
class GroupView(BlockView):
    """What a policy may read of blocks of several groups, beside the columns of every view.

    Attributes:
        group: number of the block's group, in the order of the model's groups.
        num_bytes: of the block.
        end: tokens up to and including the block: the place at which what it holds is complete.
        partners: other groups that have a resident block of the same end and prefix. Kept for policies with
            `needs_groups = True`, for which a block is also pinned and released anew at every change.
        resume: whether a request could go on from its end now. Worked out when read: O(blocks of the prefix).
        replay_cost: tokens from the last place above its end from which a request could go on: what would be computed
            again without this one. Worked out when read.
        above: the next resident block of its group above it, 0: none. Worked out when read: O(distance).
        branches: prefixes one block of full attention longer that are resident. Worked out when read.
    """

    group: Sequence[int] = UNKNOWN
    num_bytes: Sequence[int] = UNKNOWN
    end: Sequence[int] = UNKNOWN
    partners: Sequence[int] = UNKNOWN
    resume: Sequence[bool] = UNKNOWN
    replay_cost: Sequence[int] = UNKNOWN
    above: Sequence[int] = UNKNOWN
    branches: Sequence[int] = UNKNOWN


@dataclass(slots=True)
class Clock:
    """What all pools of one replay share: the count of accesses, the policies' time, the request at hand."""

    access: int = 0
    now: PolicyTime = 0.0
    facts: RequestFacts = UNKNOWN_REQUEST


class Pool:
    """`num_blocks` blocks, numbered from 1. Owns their columns; the policy owns the order.

    A block is free, in use (`ref` above 0, with or without content), or resident and in use by nobody: then the policy
    may name it. One whose content was never published is free as soon as nobody uses it.

    Args:
        leaf_only: a block is offered to the policy only while nothing of its group is resident below it.

    Attributes:
        on_evict: called with the block just before its content is forgotten, for room or by `discard`.

    Raises:
        Unsupported: a policy that needs the future, which differs by group.
    """

    def __init__(self, num_blocks: int, policy: EvictionPolicy, clock: Clock, *, leaf_only: bool = False) -> None:
        if policy.needs_future:
            raise Unsupported(f"{type(policy).__name__} needs the future, which blocks of several groups do not share; "
                              "bound the hits by mode=hybrid instead (bound_hit_tokens)")  # fmt: skip
        self.num_blocks, self.clock, self.leaf_only = num_blocks, clock, leaf_only
        self.on_evict: Callable[[int], Any] = lambda block: None
        rows = num_blocks + 1
        self.node: list[Node] = [ROOT] * rows
        self.node_above: list[Node] = [ROOT] * rows
        self.candidate = bytearray(rows)
        self.group, self.num_bytes, self.end, self.ref, self.parent, self.depth, self.last_access, self.admitted, \
            self.hits, self.children, self.partners = ([0] * rows for _ in range(11))  # fmt: skip
        self.priority, self.tenant = [0] * rows, [0] * rows
        self.last_request = [UNKNOWN_REQUEST] * rows if policy.needs_requests else ConstantColumn(UNKNOWN_REQUEST)
        self.index: dict[tuple[int, Node], list[int]] = {}
        self.free = list(range(num_blocks, 0, -1))
        self.unreferenced = 0
        self.needs_groups = policy.needs_groups
        self._host = PolicyHost(policy, self.candidate)

    def attach(self, **computed: Callable[[int], Any]) -> None:
        """Give the policy its view, with these columns of GroupView worked out of a block; once, before all else."""
        rows = self.num_blocks + 1
        lists = {
            "depth": self.depth, "num_tokens": self.end, "admitted": self.admitted, "last_access": self.last_access,
            "hits": self.hits, "priority": self.priority, "tenant": self.tenant, "children": self.children,
            "last_request": self.last_request, "group": self.group, "num_bytes": self.num_bytes, "end": self.end,
            "partners": self.partners,
        }  # fmt: skip
        facts: dict[str, Callable[[int], Any]] = {name: column.__getitem__ for name, column in lists.items()}
        facts |= {"key": self._key, "parent": self._above, **computed}
        self._host.policy.attach(GroupView(
            next_use=ConstantColumn(float("inf"), rows), partial=ConstantColumn(False, rows),
            **{name: ComputedColumn(fact, rows) for name, fact in facts.items()},
        ))  # fmt: skip

    @property
    def host(self) -> PolicyHost:
        """Drives the policy, at the time of the clock."""
        self._host.now = self.clock.now
        return self._host

    def _key(self, block: int) -> BlockHash | None:
        node = self.node[block]
        if node == ROOT:
            return None
        name = node.to_bytes(8, "little") if isinstance(node, int) else node
        return BlockHash(name + self.group[block].to_bytes(2, "little"))

    def _above(self, block: int) -> int:
        """The block directly above; 0 when that is the root or gone."""
        above = self.parent[block]
        return above if self.node[above] == self.node_above[block] and self.group[above] == self.group[block] else 0

    @property
    def used(self) -> int:
        return self.num_blocks - len(self.free) - self.unreferenced

    def find(self, group: int, node: Node) -> int:
        """The oldest block that holds this content; 0 for none."""
        blocks = self.index.get((group, node))
        return blocks[0] if blocks else 0

    def take(self, count: int) -> list[int]:
        """`count` blocks without content, each in use once; free ones first, then what the policy gives up.

        Raises:
            OutOfBlocks: fewer are free or evictable. Nothing changed.
        """
        if count > len(self.free) + self.unreferenced:
            raise OutOfBlocks(f"need {count} blocks, have {len(self.free)} free + {self.unreferenced} evictable of "
                              f"{self.num_blocks}; give the cache more bytes")  # fmt: skip
        taken = []
        for _ in range(count):
            if not self.free:
                self.discard(self.host.victim())
            block = self.free.pop()
            self.ref[block] = 1
            taken.append(block)
        return taken

    def publish(
        self, block: int, group: int, node: Node, *, parent: Node, end: int, depth: int, num_bytes: int
    ) -> None:
        """The content of a block in use can be found from now on. `parent`: the node of the block above, or ROOT."""
        self.clock.access += 1
        above = self.find(group, parent) if parent != ROOT else 0
        self.node[block], self.group[block], self.parent[block], self.node_above[block] = node, group, above, parent
        self.end[block], self.depth[block], self.num_bytes[block] = end, depth, num_bytes
        self.admitted[block] = self.last_access[block] = self.clock.access
        self.hits[block] = self.children[block] = self.partners[block] = 0
        if above:
            self.children[above] += 1
        self.index.setdefault((group, node), []).append(block)
        if isinstance(self.last_request, list):
            self.last_request[block] = self.clock.facts
        self.host.admit((block,))

    def pin(self, blocks: Sequence[int], *, hit: bool = True) -> None:
        """One more use of each of these, deepest first; `hit`: found by a request, not published once more."""
        if not blocks:
            return
        self.clock.access += 1
        idle = [block for block in blocks if self.candidate[block]]
        for block in blocks:
            self.unreferenced -= self.ref[block] == 0
            self.ref[block] += 1
            if hit:
                self.hits[block] += 1
                self.last_access[block] = self.clock.access
        host = self.host
        host.pin(idle)
        if hit:
            host.hit(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """One use less of each, deepest first. Without content and user a block is free, the first to be taken."""
        host, kept = self.host, list[int]()
        self.clock.access += any(self.ref[block] == 1 and self.node[block] != ROOT for block in blocks)
        for block in blocks:
            self.ref[block] -= 1
            if self.ref[block]:
                continue
            if self.node[block] == ROOT:
                self.free.append(block)
                continue
            self.unreferenced += 1
            self.last_access[block] = self.clock.access
            if isinstance(self.last_request, list) and self.clock.facts is not UNKNOWN_REQUEST:
                self.last_request[block] = self.clock.facts
            if not self.leaf_only or not self.children[block]:
                kept += host.kept([block], self._gone)
        host.release(kept)

    def discard(self, block: int) -> None:
        """Forget the content of a block, which is free then, unless it is in use."""
        self.host.drop(block)
        self._gone(block)

    def _gone(self, block: int) -> None:
        """As `discard`, of a block that the policy has given up."""
        self.on_evict(block)
        group, node, above = self.group[block], self.node[block], self._above(block)
        same = self.index[group, node]
        same.remove(block)
        if not same:
            del self.index[group, node]
        self.node[block] = ROOT
        if not self.ref[block]:
            self.unreferenced -= 1
            self.free.append(block)
        if above:
            self.children[above] -= self.children[above] > 0  # 0: gone and published again since
            if self.leaf_only and not self.children[above] and not self.ref[above]:
                self.host.release((above,))

    def partners_changed(self, block: int, by: int) -> None:
        """Count a partner gained or lost, and let the policy see it."""
        self.partners[block] += by
        if self.candidate[block] and self.needs_groups:
            self.host.pin((block,))
            self.host.release((block,))
