"""Large pages, each split into small blocks of one group of KV."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Any, ClassVar

from framework.errors import InvalidArgument, OutOfBlocks
from framework.groups.memory import Memory, Policies
from framework.groups.pool import Pool
from framework.interfaces.eviction import EvictionPolicy


class TwoLevel(Memory):
    """Large pages of the least common multiple of the groups' blocks, each split into small blocks of one group.

    As in Jenga (arXiv:2503.18292, section 5): a block comes from a page of its group with room, else from a free page,
    else from the page whose blocks are all unused and that the policy of pages gives up, else from a block of its own
    group that the policy of the group gives up. A page is as recent as the last use of any of its blocks.

    Raises:
        InvalidArgument: when opened with fewer pages than groups.
    """

    splits_pages: ClassVar[bool] = True

    def make_pools(self, policy: Policies, *, num_bytes: int, num_blocks: Sequence[int]) -> Sequence[Pool]:
        groups = self.groups
        page = lcm(*(group.block_bytes for group in groups))
        count = num_bytes // page
        if count < len(groups):
            raise InvalidArgument(f"pages of the least common multiple have {page:,} bytes, {num_bytes:,} bytes are "
                                  f"{count} of them, and {len(groups)} groups need one each; raise cache.num_blocks, "
                                  "or give blocks bytes that divide those of the largest")  # fmt: skip
        self.per_page = [page // group.block_bytes for group in groups]
        self.pages = Pool(count, policy(count), self.clock)
        self.pages.on_evict = self._page_evicted
        self.pages.attach()
        blocks = [count * width for width in self.per_page]
        return [_SmallBlocks(self, g, most, policy(most)) for g, most in enumerate(blocks)]

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
