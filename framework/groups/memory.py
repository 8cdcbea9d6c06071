"""Three ways in which groups share memory: one pool of equal pages, a pool a group, pages split into small blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import lcm
from typing import Any

from framework.errors import InvalidArgument, OutOfBlocks
from framework.groups.pool import ROOT, Clock, Node, Pool
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import GroupHit, KVGroup, alignment, find_hit
from framework.types import BlockId

Policies = Callable[[], EvictionPolicy]
"""Makes a fresh policy: one for each order that a way of sharing keeps."""
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


class Memory:
    """Blocks of all groups: found by content, taken, published, used and let go.

    A block is named by its group and its number in the pool of that group. Content is named by its group and a node,
    which stands for a prefix of whole units.

    Args:
        unit: tokens a node adds.
        parents: of each node the one that is a unit shorter, ROOT of the first, where nodes are a trace's numbers.
            None: they become known with the contents, and are forgotten with them.

    Attributes:
        groups: of the model. step: tokens of which a hit is a multiple.
        pools: (G,) the pool of each group; one pool may serve several.
        merge: whether a block whose content is resident already gives way to the resident one when published.
        evictions: (G,) contents given up.
        listener: receives every CacheEvent, of one block each; None: nobody does.
    """

    merge = True

    def __init__(
        self, groups: Sequence[KVGroup], *, unit: int, parents: Sequence[int] | dict[int, int] | None = None
    ) -> None:
        self.groups, self.step, self.unit = tuple(groups), alignment(groups), unit
        self._prefixes = Prefixes() if parents is None else None
        self.parents: Sequence[int] | dict[Node, Node] = self._prefixes if parents is None else parents  # type: ignore[assignment]
        if any(group.block_tokens % unit for group in groups):
            raise InvalidArgument(f"blocks must be multiples of {unit} tokens, as the trace's are, found "
                                  f"{[group.block_tokens for group in groups]}")  # fmt: skip
        self.clock = Clock()
        self.evictions = [0] * len(groups)
        self.listener: Callable[[CacheEvent], Any] | None = None
        self.pools: tuple[Pool, ...] = ()

    def _open(self, *pools: Pool) -> None:
        """Give each group its pool, in order (one for all: of all), and their policies a view."""
        self.pools = pools * len(self.groups) if len(pools) == 1 else pools
        self._partnered = any(pool.needs_groups for pool in pools)
        for pool in pools:
            pool.on_evict = partial(self._gone, pool)
            facts = {"resume": self._resumes, "replay_cost": self._replay_cost, "above": self._above,
                     "branches": self._branches}  # fmt: skip
            pool.attach(**{name: partial(fact, pool) for name, fact in facts.items()})

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

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether so many blocks of each group could be in use at once."""
        return all(sum(counts[g] for g, other in enumerate(self.pools) if other is pool) <= pool.num_blocks
                   for pool in dict.fromkeys(self.pools))  # fmt: skip

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
            partners = self._partners(group, node)
            pool.partners[block] = len({other for other, _ in partners})
            self._tell(group, node, partners, +1)
        return block

    def _gone(self, pool: Pool, block: int) -> None:
        group, node = pool.group[block], pool.node[block]
        self.evictions[group] += not pool.ref[block]
        if self.listener is not None:
            self.listener(CacheEvent("evict", (BlockId(block),), (node,), group))
        self._evicted(group, node)
        if self._prefixes is not None:
            self._prefixes.drop(node)

    def _evicted(self, group: int, node: Node) -> None:
        """Content of a group is about to go; what else goes with it is for subclasses to say."""
        if self._partnered:
            self._tell(group, node, self._partners(group, node), -1)

    def _tell(self, group: int, node: Node, partners: Sequence[tuple[int, int]], by: int) -> None:
        """Partners gain or lose this group, unless another copy of the content is resident."""
        if len(self.pools[group].index[group, node]) == 1:
            for other, found in partners:
                self.pools[other].partners_changed(found, by)

    def _partners(self, group: int, node: Node) -> list[tuple[int, int]]:
        """(group, block) of every other group's block that ends where this content does."""
        return [(other, found) for other in range(len(self.groups)) if other != group
                for found in self.pools[other].index.get((other, node), ())]  # fmt: skip

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

    def bytes_by_group(self) -> list[int]:
        """(G,) bytes of what can be found."""
        found = [0] * len(self.groups)
        for pool in dict.fromkeys(self.pools):
            for (group, _), blocks in pool.index.items():
                found[group] += len(blocks) * self.groups[group].block_bytes
        return found


class OnePool(Memory):
    """Pages of equal bytes for all groups behind one policy, as in vLLM: with `lru` its free queue, to the block.

    A content computed again, because another group cut the hit, is resident twice, as there.

    Args:
        num_bytes: of all pages; a page has the bytes of the largest block.
    """

    merge = False

    def __init__(self, groups: Sequence[KVGroup], policy: Policies, *, num_bytes: int, **paths: Any) -> None:
        super().__init__(groups, **paths)
        page = max(group.block_bytes for group in groups)
        self._open(Pool(num_bytes // page, policy(), self.clock))


class PoolPerGroup(Memory):
    """A pool and a policy for each group.

    Coupled, over one tree, as in SGLang: full attention gives up leaves only, and all that ends there goes with it.
    Elsewhere a window or state that is evicted leaves a tombstone: the prefix stays, but nobody resumes there; a window
    takes the state along. At a leaf the whole leaf goes. Else groups know nothing of each other, as in vLLM.

    Args:
        num_blocks: (G,) of each group.

    Raises:
        InvalidArgument: coupled, and not one full-attention group, or blocks of several sizes.
    """

    def __init__(
        self, groups: Sequence[KVGroup], policy: Policies, *, num_blocks: Sequence[int], coupled: bool = True,
        **paths: Any,
    ) -> None:  # fmt: skip
        super().__init__(groups, **paths)
        kinds, self._coupled = [group.kind for group in groups], coupled
        if not coupled:
            self._open(*(Pool(count, policy(), self.clock) for count in num_blocks))
            return
        if kinds.count("full") != 1 or len({group.block_tokens for group in groups}) > 1:
            raise InvalidArgument(f"a pool a group over one tree needs one full-attention group and equal blocks, "
                                  f"found {[(group.kind, group.block_tokens) for group in groups]}")  # fmt: skip
        self._full = kinds.index("full")
        self._rank = [("state", "window", "chunk", "full").index(kind) for kind in kinds]
        self._open(*(
            Pool(count, policy(), self.clock, leaf_only=g == self._full)
            for g, (_, count) in enumerate(zip(groups, num_blocks, strict=True))
        ))  # fmt: skip
        self._going: set[Node] = set()

    def _evicted(self, group: int, node: Node) -> None:
        super()._evicted(group, node)
        if not self._coupled or node in self._going:
            return
        self._going.add(node)
        full = self.pools[self._full]
        leaf = full.find(self._full, node)
        whole = leaf and not full.children[leaf] and not full.ref[leaf]
        for other, block in self._partners(group, node):
            if (whole or self._rank[other] < self._rank[group]) and not self.pools[other].ref[block]:
                self.pools[other].discard(block)
        self._going.remove(node)


class TwoLevel(Memory):
    """Large pages of the least common multiple of the groups' blocks, each split into small blocks of one group.

    As in Jenga (arXiv:2503.18292, section 5): a block comes from a page of its group with room, else from a free page,
    else from the page whose blocks are all unused and that the policy of pages gives up, else from a block of its own
    group that the policy of the group gives up. A page is as recent as the last use of any of its blocks.

    Args:
        num_bytes: of all pages.
    """

    def __init__(self, groups: Sequence[KVGroup], policy: Policies, *, num_bytes: int, **paths: Any) -> None:
        super().__init__(groups, **paths)
        page = lcm(*(group.block_bytes for group in groups))
        count = num_bytes // page
        if count < len(groups):
            raise InvalidArgument(f"pages of the least common multiple have {page:,} bytes, {num_bytes:,} bytes are "
                                  f"{count} of them; give blocks bytes that divide those of the largest")  # fmt: skip
        self.per_page = [page // group.block_bytes for group in groups]
        self.pages = Pool(count, policy(), self.clock)
        self.pages.on_evict = self._page_evicted
        self._open(*(_SmallBlocks(self, g, count * self.per_page[g], policy()) for g in range(len(groups))))
        self.pages.attach()

    def take(self, group: int, count: int) -> list[int]:
        small = self.pools[group]
        assert isinstance(small, _SmallBlocks)
        idle = self._idle_pages()
        lacking = 0 if count <= idle * self.per_page[group] else small.lacks(count, small.busy(), (), idle)[0]
        if lacking > 0:
            raise OutOfBlocks(f"need {count} blocks of {self.groups[group].name}, have {count - lacking} free or "
                              "evictable; give the cache more bytes")  # fmt: skip
        return [small.take_one() for _ in range(count)]

    def _idle_pages(self) -> int:
        return len(self.pages.free) + self.pages.unreferenced

    def holds(self, counts: Sequence[int]) -> bool:
        return sum(-(-count // width) for count, width in zip(counts, self.per_page, strict=True)) <= (
            self.pages.num_blocks
        )

    def fits(self, counts: Sequence[int], used_blocks: Sequence[Sequence[int]] = ()) -> bool:
        """Whether `take` can hand out so many. Pages to give up count alike: it may say no where it could."""
        smalls: list[Any] = [*self.pools]
        used_blocks = used_blocks or [()] * len(smalls)
        busy = [small.busy(blocks) for small, blocks in zip(smalls, used_blocks, strict=True)]
        idle = self._idle_pages()
        idle -= sum(len(pages) - len(small.busy()) for small, pages in zip(smalls, busy, strict=True))
        for small, count, pages, blocks in zip(smalls, counts, busy, used_blocks, strict=True):
            lacking, idle = small.lacks(count, pages, blocks, idle)
            if lacking > 0 or idle < 0:
                return False
        return True

    def _page_evicted(self, page: int) -> None:
        small = self.pools[self.pages.group[page]]
        assert isinstance(small, _SmallBlocks)
        small.empty(page)


class _SmallBlocks(Pool):
    """The blocks of one group in all pages; of a page that another group has, none is there.

    `free` holds nothing: free blocks are kept by page, and a page without contents goes back.
    """

    def __init__(self, memory: TwoLevel, group: int, num_blocks: int, policy: EvictionPolicy) -> None:
        super().__init__(num_blocks, policy, memory.clock)
        self.free = []
        self._pages, self._group, self._width = memory.pages, group, memory.per_page[group]
        self._holes: dict[int, list[int]] = {}  # of each page that this group has: its free blocks
        self._used: dict[int, int] = {}  # and how many of its blocks are in use by a request
        self._open: dict[int, None] = {}  # pages with a free block, in the order in which they got it
        self._emptying = 0

    @property
    def used(self) -> int:
        return sum(self._used.values())

    def busy(self, blocks: Sequence[int] = ()) -> set[int]:
        """Pages of this group with a block in use, these blocks among them."""
        return {page for page, used in self._used.items() if used} | {self._page_of(b) for b in blocks}

    def lacks(self, count: int, busy: set[int], blocks: Sequence[int], idle: int) -> tuple[int, int]:
        """How many of `count` blocks could not be had, with `blocks` in use in the pages `busy`; and what is left of
        `idle` pages that nobody uses."""
        for page in self._open if count else ():
            if count > 0 and (page in busy or idle > 0):
                idle -= page not in busy
                busy.add(page)
                count -= len(self._holes[page])
        if count > 0:
            pages = min(idle, -(-count // self._width))
            idle, count = idle - pages, count - pages * self._width
        if count > 0:
            kept = set(blocks)
            count -= sum(self.candidate[b] for page in busy for b in self._of(page) if b not in kept)
        return count, idle

    def take_one(self) -> int:
        if not self._open:
            if not self._pages.free and not self._pages.unreferenced:
                self.discard(self.host.victim())
            else:
                page = self._pages.take(1)[0]
                self._pages.publish(page, self._group, page, parent=-1, end=0, depth=0, num_bytes=0)
                self._holes[page], self._used[page] = list(self._of(page))[::-1], 0
                self._pages.release((page,))
                self._open[page] = None
        page = next(iter(self._open))
        block = self._holes[page].pop()
        if not self._holes[page]:
            del self._open[page]
        self.ref[block] = 1
        self._use(block, +1)
        return block

    def pin(self, blocks: Sequence[int], *, hit: bool = True) -> None:
        fresh = [block for block in blocks if not self.ref[block]]
        super().pin(blocks, hit=hit)
        for block in fresh:
            self._use(block, +1)

    def release(self, blocks: Sequence[int]) -> None:
        last = [block for block in blocks if self.ref[block] == 1]
        super().release(blocks)
        for block in last:
            self._use(block, -1)
        self._settle()

    def discard(self, block: int) -> None:
        super().discard(block)
        if not self._emptying:
            self._settle()

    def empty(self, page: int) -> None:
        """All contents of a page go: it is another's from now on."""
        self._emptying += 1
        for block in self._of(page):
            if self.candidate[block]:
                self.discard(block)
        self._emptying -= 1
        self.free = []
        self._open.pop(page, None)
        del self._holes[page], self._used[page]

    def _page_of(self, block: int) -> int:
        return (block - 1) // self._width + 1

    def _of(self, page: int) -> range:
        return range((page - 1) * self._width + 1, page * self._width + 1)

    def _use(self, block: int, by: int) -> None:
        page = self._page_of(block)
        before, self._used[page] = self._used[page], self._used[page] + by
        if before == 0:
            self._pages.pin((page,))
        elif self._used[page] == 0:
            self._pages.release((page,))

    def _settle(self) -> None:
        """Give blocks that became free to their pages, and pages that hold nothing back."""
        freed, self.free = self.free, []
        for block in freed:
            page = self._page_of(block)
            self._holes[page].append(block)
            self._open[page] = None
        for page in set(map(self._page_of, freed)):
            if len(self._holes[page]) == self._width and not self._used[page]:
                self._pages.discard(page)


def stranded_bytes(memory: Memory) -> list[int]:
    """(G,) bytes of each group that are needed at no place from which a request could go on.

    A content that is resident twice counts once. O(prefixes of what is resident + resident blocks times those of the
    widest window).
    """
    groups, parents, unit = memory.groups, memory.parents, memory.unit
    have: list[set[Node]] = [set() for _ in groups]
    for g, node in memory.resident():
        have[g].add(node)
    depths: dict[Node, int] = {ROOT: 0}  # units up to and including each node
    for node in set().union(*have):
        path = []
        while node not in depths:
            path.append(node)
            node = parents[node]
        for number, one in enumerate(reversed(path), depths[node] + 1):
            depths[one] = number

    def up(node: Node, units: int) -> Node:
        for _ in range(units):
            node = parents[node]
        return node

    wide = [group.block_tokens // unit for group in groups]
    runs: list[dict[Node, int]] = []  # resident blocks without a gap that end at a node
    for g, found in enumerate(have):
        run: dict[Node, int] = {}
        for node in sorted(found, key=depths.__getitem__):
            run[node] = 1 + run.get(up(node, wide[g]), 0)
        runs.append(run)
    # A draft model's group has a block beyond the place, so places are looked for from there.
    ahead = max((w for w, group in zip(wide, groups, strict=True) if group.lookahead_drop), default=0)
    anchors = [g for g, w in enumerate(wide) if groups[g].kind != "chunk" and w * groups[g].lookahead_drop == ahead]
    useful: list[set[Node]] = [set() for _ in groups]
    for end in min((have[g] for g in anchors), key=len, default=set()):
        place = (depths[end] - ahead) * unit
        needs = [group.needs(place) for group in groups] if place % memory.step == 0 else []
        ends = [up(end, depths[end] - need.stop * wide[g]) for g, need in enumerate(needs)]
        if not needs or any(runs[g].get(ends[g], 0) < len(need) for g, need in enumerate(needs)):
            continue
        for g, need in enumerate(needs):
            node = ends[g]
            for _ in need:
                if groups[g].kind == "full" and node in useful[g]:
                    break
                useful[g].add(node)
                node = up(node, wide[g])
    return [group.block_bytes * len(found - used) for group, found, used in zip(groups, have, useful, strict=True)]
