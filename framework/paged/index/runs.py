"""Index by chained hash that keeps whole runs of contents, for schemes that do not collide."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from framework.paged.index.base import PrefixIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash


class Run:
    """Contents of one chain, each directly below the one before, and all of them published.

    Attributes:
        blocks: that hold them, in order.
        depth: of the first.
        above: the content directly above the first, None at the root.
        branches: how many of its contents other runs begin below.
    """

    __slots__ = ("above", "blocks", "branches", "depth")

    def __init__(self, depth: int, above: BranchPoint | None) -> None:
        self.blocks = array("i")
        self.depth = depth
        self.above = above
        self.branches = 0


class BranchPoint:
    """A content that runs begin directly below.

    Attributes:
        block_hash: its name.
        block: that holds it; 0 while none does.
        runs: that begin below it, at least one.
    """

    __slots__ = ("block", "block_hash", "runs")

    def __init__(self, block_hash: BlockHash, block: int) -> None:
        self.block_hash = block_hash
        self.block = block
        self.runs = 0


class RunIndex(PrefixIndex):
    """For collision-resistant schemes: prompts are found run by run instead of block by block.

    Most blocks are published together with their neighbours and evicted from the end of a prompt. So the index is a
    dict of the first content of each *run*, and a run is an array of blocks. A lookup finds a run by one hash, compares
    the others with `pool.block_hash` as far as they agree, and goes on with the run that begins there, if any. A prompt
    is published by extending the run that its prefix ends, or by a new run where that goes on otherwise (a branch).
    Evicting a run's last blocks shortens it; a block in the middle parts it in two.

    A chained hash stands for the whole prefix, so each content is in one place: behind its parent in the parent's run,
    or first in a run of its own. A run whose parent content is evicted waits, and is found again once that is back.

    Costs: a run takes some 250 bytes beside 12 bytes a block; parting runs is O(log n) a block, amortised, all else
    O(1). `pool.depth` says where in its run a block is: who publishes describes (`BlockPool.describe`).
    """

    compares_tokens = False

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self._heads: dict[BlockHash, Run] = {}
        self._run_of: list[Run | None] = [None] * (pool.num_blocks + 1)  # of a published block
        self._branches: dict[int, BranchPoint] = {}  # by the block that holds it
        self._absent: dict[BlockHash, BranchPoint] = {}  # those that no block holds
        self._counting = False
        pool.count_children, pool.parent_of = self._count, self.parent

    def _run(self, block: int) -> Run:
        run = self._run_of[block]
        assert run is not None, f"block {block} is not published"
        return run

    def _hash(self, block: int) -> BlockHash:
        block_hash = self._pool.block_hash[block]
        assert block_hash is not None, f"block {block} is not published"
        return block_hash

    def _count(self, children: array[int]) -> None:
        """Count the children of all contents, and keep the counts from here on."""
        self._counting = True
        for run in self._heads.values():
            for block in run.blocks[:-1]:
                children[block] = 1
        for block, branch in self._branches.items():
            children[block] += branch.runs

    def find(self, anchor: int, hashes: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        hash_of, heads = self._pool.block_hash, self._heads
        found: list[int] = []
        limit = min(limit, len(hashes))
        while (at := len(found)) < limit:
            run = heads.get(hashes[at])
            if run is None:
                break
            for block, block_hash in zip(run.blocks.tolist(), hashes[at:limit], strict=False):
                if hash_of[block] != block_hash:
                    break
                found.append(block)
        return found

    def _holder(self, parent: int, block_hash: BlockHash) -> int:
        """The block that holds this content of those below `parent`, 0 if none does."""
        if parent:
            run = self._run(parent)
            below = self._pool.depth[parent] - run.depth + 1
            if below < len(run.blocks) and self._pool.block_hash[run.blocks[below]] == block_hash:
                return run.blocks[below]
        head = self._heads.get(block_hash)
        return 0 if head is None else head.blocks[0]

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        if not hashes or self._holder(parent, hashes[0]):
            return 0
        if not self._absent:  # what no block holds has nothing below it
            return len(hashes)
        return next((at for at, block_hash in enumerate(hashes) if block_hash in self._heads), len(hashes))

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        run = self._run_of[parent] if parent else None
        if run is None or run.blocks[-1] != parent or block_hash in self._heads:
            holder = self._holder(parent, block_hash)
            if holder:
                return holder
            run = self._run_below(parent, block_hash)
        run.blocks.append(block)
        self._run_of[block] = run
        self._pool.depth[block] = run.depth + len(run.blocks) - 1
        branch = self._absent.pop(block_hash, None) if self._absent else None
        if branch is not None:
            branch.block = block
            self._branches[block] = branch
            run.branches += 1
        if self._counting:
            self._pool.children[block] = 0 if branch is None else branch.runs
            if parent:
                self._pool.children[parent] += 1
        return block

    def insert_chain(
        self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        if self._absent or self._holder(parent, hashes[0]):
            return super().insert_chain(anchor, parent, hashes, data, blocks)
        # No block holds the first, so none holds any: a content without its parent waits below an absent one.
        hash_of, run_of = self._pool.block_hash, self._run_of
        run = self._run_below(parent, hashes[0])
        run.blocks.extend(blocks)
        for block, block_hash in zip(blocks, hashes, strict=True):
            hash_of[block] = block_hash
            run_of[block] = run
        if self._counting:
            children = self._pool.children
            if parent:
                children[parent] += 1
            for block in blocks:
                children[block] = 1
            children[blocks[-1]] = 0
        return blocks, range(len(blocks))

    def _run_below(self, parent: int, block_hash: BlockHash) -> Run:
        """The run that a new content below `parent` goes to the end of: the parent's, or one that begins with it."""
        if not parent:
            run = self._heads[block_hash] = Run(0, None)
            return run
        run = self._run(parent)
        if run.blocks[-1] == parent:
            return run
        above = self._branch_at(parent)
        above.runs += 1
        run = self._heads[block_hash] = Run(self._pool.depth[parent] + 1, above)
        return run

    def _branch_at(self, block: int) -> BranchPoint:
        branch = self._branches.get(block)
        if branch is None:
            branch = self._branches[block] = BranchPoint(self._hash(block), block)
            self._run(block).branches += 1
        return branch

    def parent(self, block: int) -> int:
        run = self._run_of[block]
        if run is None:
            return 0
        place = self._pool.depth[block] - run.depth
        if place:
            return run.blocks[place - 1]
        return 0 if run.above is None else run.above.block

    def remove(self, block: int) -> None:
        run = self._run(block)
        if run.blocks[-1] == block and not (run.branches and block in self._branches):
            self._shorten(run, 1)
            self._run_of[block] = None
            return
        place = self._pool.depth[block] - run.depth
        before, after = run.blocks[:place], run.blocks[place + 1 :]
        if self._counting:
            self._pool.children[block] = 0
            self._lost_a_child(self.parent(block))
        if after or block in self._branches:
            branch = self._branch_at(block)
            branch.block = 0
            run.branches -= 1
            self._absent[branch.block_hash] = self._branches.pop(block)
        if not before:
            self._end(run)
        self._run_of[block] = None
        if after:
            self._part(run, before, after, branch)
        else:
            run.blocks = before

    def _part(self, run: Run, before: array[int], after: array[int], above: BranchPoint) -> None:
        """Make two runs of one that lost the content `above` in its middle, or let it begin later."""
        new = Run(run.depth, run.above)
        # The smaller part gets the new object, so that a block changes its run O(log n) times.
        front, back, moved = (new, run, before) if len(before) < len(after) else (run, new, after)
        for block in moved:
            self._run_of[block] = new
        if run.branches:
            new.branches = len(self._branches.keys() & moved)
            run.branches -= new.branches
        if before:
            front.blocks = before
            self._heads[self._hash(before[0])] = front
        back.blocks, back.depth, back.above = after, self._pool.depth[after[0]], above
        above.runs += 1
        self._heads[self._hash(after[0])] = back

    def remove_all(self, blocks: Sequence[int]) -> None:
        hash_of, run_of = self._pool.block_hash, self._run_of
        if len(blocks) == 1:
            super().remove_all(blocks)
            return
        at, packed = 0, blocks if isinstance(blocks, array) else array("i", blocks)
        while at < len(packed):
            count = self._remove_tail(packed, at)
            if not count:
                self.remove(packed[at])
            at += count or 1
        for block in blocks:
            hash_of[block] = run_of[block] = None

    def _remove_tail(self, blocks: array[int], at: int) -> int:
        """Take out as many of blocks[at:] as end a run, up to one that others begin below; returns how many."""
        run = self._run(blocks[at])
        count = tail_length(run.blocks, blocks, at, len(run.blocks))
        if run.branches and not self._branches.keys().isdisjoint(blocks[at : at + count]):
            count = next(number for number in range(count) if blocks[at + number] in self._branches)
        if count:
            self._shorten(run, count)
        return count

    def _shorten(self, run: Run, count: int) -> None:
        """Take out the last `count` contents of a run, below none of which others begin."""
        held = run.blocks
        if self._counting:
            for block in held[-count:]:
                self._pool.children[block] = 0
            self._lost_a_child(self.parent(held[-count]))
        if count == len(held):
            self._end(run)
        del held[-count:]

    def _end(self, run: Run) -> None:
        """The first content of this run goes."""
        del self._heads[self._hash(run.blocks[0])]
        above = run.above
        if above is not None:
            above.runs -= 1
            if not above.runs and above.block:
                self._run(above.block).branches -= 1
                del self._branches[above.block]
            elif not above.runs:
                del self._absent[above.block_hash]

    def _lost_a_child(self, parent: int) -> None:
        if parent:
            self._pool.children[parent] -= 1

    def clear(self) -> None:
        self._heads.clear()
        self._branches.clear()
        self._absent.clear()
        self._run_of = [None] * len(self._run_of)

    def audit(self) -> list[str]:
        return [*self._audit_runs(), *self._audit_branches(), *self._audit_children()]

    def _audit_runs(self) -> list[str]:
        pool, faults = self._pool, []
        held = {block: (run, place) for run in self._heads.values() for place, block in enumerate(run.blocks)}
        for block_hash, run in self._heads.items():
            if not run.blocks or pool.block_hash[run.blocks[0]] != block_hash:
                faults.append(
                    f"I20: the index finds block {[*run.blocks][:1]} under {block_hash.hex()}, which it does not hold"
                )
        if len(held) != sum(len(run.blocks) for run in self._heads.values()):
            faults.append("I20: a block is in two runs")
        for block in range(1, pool.num_blocks + 1):
            published = pool.block_hash[block] is not None
            if published != (block in held):
                faults.append(
                    f"I20: block {block} is published but the index does not find it"
                    if published
                    else f"I20: the index finds block {block}, which is not published"
                )
        for block, (run, place) in held.items():
            if self._run_of[block] is not run or pool.depth[block] != run.depth + place:
                faults.append(f"I20: block {block} is {place} behind the first of its run, its facts say otherwise")
        return faults

    def _audit_branches(self) -> list[str]:
        pool, faults = self._pool, []
        runs = Counter(id(run.above) for run in self._heads.values() if run.above is not None)
        known = [*self._branches.values(), *self._absent.values()]
        for block, branch in self._branches.items():
            if branch.block != block or pool.block_hash[block] != branch.block_hash:
                faults.append(f"I20: runs begin below block {block}, which does not hold their parent")
        for block_hash, branch in self._absent.items():
            if branch.block or branch.block_hash != block_hash:
                faults.append(f"I20: the absent parent {block_hash.hex()} is in block {branch.block}")
        for run in self._heads.values():
            if run.branches != len(self._branches.keys() & run.blocks):
                faults.append(f"I20: a run of {len(run.blocks)} blocks counts {run.branches} branches wrongly")
        if dict(runs) != {id(branch): branch.runs for branch in known}:
            faults.append(f"I20: {len(runs)} contents have runs below them, {len(known)} noted, absent parents too")
        return faults

    def _audit_children(self) -> list[str]:
        counts: Counter[int] = Counter(block for run in self._heads.values() for block in run.blocks[:-1])
        counts.update(run.above.block for run in self._heads.values() if run.above is not None)
        return [
            f"I20: block {block} has {counts[block]} children, its count says {found}"
            for block, found in enumerate(self._pool.children)
            if block and found != counts[block]
        ]


def tail_length(held: array[int], blocks: array[int], at: int, most: int) -> int:
    """How many of blocks[at:], at most `most`, end `held`, its last block first."""
    count = min(most, len(blocks) - at)
    if count < 1 or held[-1] != blocks[at]:
        return 0
    if count == 1 or held[-2] != blocks[at + 1]:
        return 1
    if held[: -count - 1 : -1] == blocks[at : at + count]:
        return count
    return next(number for number in range(2, count) if held[-1 - number] != blocks[at + number])
