"""Index by tokens that keeps whole runs of contents, for schemes whose hashes may collide."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import count

from framework.paged.index.base import PrefixIndex
from framework.paged.index.runs import tail_length
from framework.paged.pool import BlockPool
from framework.types import BlockHash

Place = tuple["TokenRun", int]
"""A content: its run, and where in it it is."""


class TokenRun:
    """Contents of one chain, each directly below the one before; the last one is held or has runs below it.

    Attributes:
        key: under which the index finds it: what its first content is below, and that one's hash.
        above: that content, where it is not the root.
        depth: of the first content.
        blocks: that hold them, in order; 0 where a content is a ghost.
        data: their tokens as int32 bytes.
        ghosts: hashes of the contents that no block holds, by place.
        branches: by place, those that other runs begin below.
    """

    __slots__ = ("above", "blocks", "branches", "data", "depth", "ghosts", "key")

    def __init__(self, key: tuple[int, BlockHash], depth: int, above: TokenBranch | None) -> None:
        self.key = key
        self.above = above
        self.depth = depth
        self.blocks = array("i")
        self.data = bytearray()
        self.ghosts: dict[int, BlockHash] = {}
        self.branches: dict[int, TokenBranch] = {}


class TokenBranch:
    """A content that runs begin directly below: its place, a number that stands for it, and those runs."""

    __slots__ = ("number", "place", "run", "runs")

    def __init__(self, number: int, run: TokenRun, place: int) -> None:
        self.number = number
        self.run = run
        self.place = place
        self.runs: set[TokenRun] = set()


class TokenRunIndex(PrefixIndex):
    """For schemes that may collide: an exact trie of runs of contents, whose tokens are compared.

    A run is an array of blocks and the tokens that they hold, so that a lookup compares as many blocks at once as a run
    and a prompt share. A dict finds the runs that begin below a content, or below a namespace's root, by the hash of
    their first; a content with the hash of another one below the same parent is refused.

    Evicted content whose descendants are resident stays as a ghost, tokens included, so that nothing else can take its
    place and the descendants are found again once it is published again. Ghosts go with their last descendant: none
    under LRU and any leaf-only policy, at most depth times residents.

    `pool.depth` says where in its run a block is: who publishes describes (`BlockPool.describe`).
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self._step = 4 * pool.block_size
        self._heads: dict[tuple[int, BlockHash], TokenRun] = {}
        self._run_of: list[TokenRun | None] = [None] * (pool.num_blocks + 1)  # of a published block
        self._numbers = count(1)
        self._counting = False
        pool.count_children, pool.parent_of = self._count, self.parent

    def _place(self, block: int) -> Place:
        run = self._run_of[block]
        assert run is not None, f"block {block} is not published"
        return run, self._pool.depth[block] - run.depth

    def find(self, anchor: int, hashes: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        found: list[int] = []
        above, limit = anchor, min(limit, len(hashes))
        while (at := len(found)) < limit:
            run = self._heads.get((above, hashes[at]))
            if run is None:
                break
            alike = self._alike(run, data, at, limit)
            found += run.blocks[:alike]
            if run.ghosts and 0 in found:
                return found[: found.index(0)]
            branch = run.branches.get(alike - 1)
            if branch is None:
                break
            above = branch.number
        return found

    def _alike(self, run: TokenRun, data: bytes, at: int, limit: int) -> int:
        """In how many contents the run, and the prompt of these tokens from block `at` to `limit`, begin alike."""
        known, step = run.data, self._step
        alike, differ = 0, min(len(run.blocks), limit - at) + 1
        if known.startswith(data[at * step : (at + differ - 1) * step]):
            return differ - 1
        while differ - alike > 1:
            middle = (alike + differ) // 2
            if known.startswith(data[at * step : (at + middle) * step]):
                alike = middle
            else:
                differ = middle
        return alike

    def _below(self, anchor: int, above: Place | None, block_hash: BlockHash) -> Place | None:
        """The content of this hash directly below `above`, or below the root."""
        number = anchor
        if above is not None:
            run, place = above
            if place + 1 < len(run.blocks) and self._hash_at(run, place + 1) == block_hash:
                return run, place + 1
            branch = run.branches.get(place)
            if branch is None:
                return None
            number = branch.number
        head = self._heads.get((number, block_hash))
        return None if head is None else (head, 0)

    def _hash_at(self, run: TokenRun, place: int) -> BlockHash:
        found = self._pool.block_hash[run.blocks[place]]
        return run.ghosts[place] if found is None else found

    def _same(self, content: Place, data: bytes) -> bool:
        run, place = content
        return run.data.startswith(data, place * self._step)

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        above, step = self._place(parent) if parent else None, self._step
        for at, block_hash in enumerate(hashes):
            above = self._below(anchor, above, block_hash)
            if above is None:
                return len(hashes)
            run, place = above
            if run.blocks[place] or not self._same(above, data[at * step : (at + 1) * step]):
                return at
        return len(hashes)

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        above = self._place(parent) if parent else None
        ends = above is not None and above[1] == len(above[0].blocks) - 1 and not above[0].branches
        content = None if ends else self._below(anchor, above, block_hash)
        if content is None:
            run = self._run_below(anchor, above, block_hash)
            run.blocks.append(block)
            run.data += data
            place = len(run.blocks) - 1
        elif not self._same(content, data):
            self.collisions += 1
            return 0
        else:
            run, place = content
            if run.blocks[place]:
                return run.blocks[place]
            run.blocks[place] = block
            del run.ghosts[place]
        self._run_of[block] = run
        self._pool.depth[block] = run.depth + place
        if self._counting:
            self._pool.children[block] = self._children_at(run, place)
            self._count_child(parent, 1)
        return block

    def insert_chain(
        self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        above = self._place(parent) if parent else None
        if self._below(anchor, above, hashes[0]) is not None:
            return super().insert_chain(anchor, parent, hashes, data, blocks)
        hash_of, run_of = self._pool.block_hash, self._run_of  # the first is new, so nothing is below it
        run = self._run_below(anchor, above, hashes[0])
        run.blocks.extend(blocks)
        run.data += data
        for block, block_hash in zip(blocks, hashes, strict=True):
            hash_of[block] = block_hash
            run_of[block] = run
        if self._counting:
            self._count_child(parent, 1)
            for block in blocks:
                self._pool.children[block] = 1
            self._pool.children[blocks[-1]] = 0
        return blocks, range(len(blocks))

    def _run_below(self, anchor: int, above: Place | None, block_hash: BlockHash) -> TokenRun:
        """The run that a new content below `above` goes to the end of: that one's, or one that begins with it."""
        if above is None:
            run = self._heads[anchor, block_hash] = TokenRun((anchor, block_hash), 0, None)
            return run
        run, place = above
        if place == len(run.blocks) - 1:
            return run
        branch = run.branches.get(place)
        if branch is None:
            branch = run.branches[place] = TokenBranch(next(self._numbers), run, place)
        new = TokenRun((branch.number, block_hash), run.depth + place + 1, branch)
        branch.runs.add(new)
        self._heads[new.key] = new
        return new

    def parent(self, block: int) -> int:
        if self._run_of[block] is None:
            return 0
        run, place = self._place(block)
        if place:
            return run.blocks[place - 1]
        return 0 if run.above is None else run.above.run.blocks[run.above.place]

    def remove(self, block: int) -> None:
        run, place = self._place(block)
        if place and place == len(run.blocks) - 1 and not run.branches and not run.ghosts:
            self._shorten(run, 1)
            self._run_of[block] = None
            return
        block_hash = self._pool.block_hash[block]
        assert block_hash is not None, f"block {block} is not published"
        if self._counting:
            self._pool.children[block] = 0
            self._count_child(self.parent(block), -1)
        self._run_of[block] = None
        run.blocks[place] = 0
        run.ghosts[place] = block_hash
        self._trim(run)

    def _trim(self, run: TokenRun) -> None:
        """Forget the ghosts at the end of a run that have no descendants, and those above them."""
        while True:
            end = len(run.blocks)
            while end and not run.blocks[end - 1] and end - 1 not in run.branches:
                end -= 1
                del run.ghosts[end]
            del run.blocks[end:], run.data[end * self._step :]
            if end:
                return
            del self._heads[run.key]
            above = run.above
            if above is None:
                return
            above.runs.remove(run)
            if above.runs:
                return
            run = above.run
            del run.branches[above.place]

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
        run, place = self._place(blocks[at])
        number = tail_length(run.blocks, blocks, at, len(run.blocks))
        if run.branches and not run.branches.keys().isdisjoint(range(place + 1 - number, place + 1)):
            number = next(before for before in range(number) if place - before in run.branches)
        if number:
            self._shorten(run, number)
            self._trim(run)
        return number

    def _shorten(self, run: TokenRun, number: int) -> None:
        """Take out the last `number` contents of a run, all held, below none of which others begin."""
        if self._counting:
            self._count_child(self.parent(run.blocks[-number]), -1)
            for block in run.blocks[-number:]:
                self._pool.children[block] = 0
        del run.blocks[-number:], run.data[-number * self._step :]

    def clear(self) -> None:
        self._heads.clear()
        self._run_of = [None] * len(self._run_of)

    def _count(self, children: array[int]) -> None:
        """Count the children of all contents, and keep the counts from here on."""
        self._counting = True
        for run in self._heads.values():
            for place, block in enumerate(run.blocks):
                if block:
                    children[block] = self._children_at(run, place)

    def _children_at(self, run: TokenRun, place: int) -> int:
        branch = run.branches.get(place)
        begun = 0 if branch is None else sum(other.blocks[0] > 0 for other in branch.runs)
        return begun + (place + 1 < len(run.blocks) and run.blocks[place + 1] > 0)

    def _count_child(self, parent: int, more: int) -> None:
        if parent:
            self._pool.children[parent] += more

    def audit(self) -> list[str]:
        held: dict[int, Place] = {}
        faults = list[str]()
        for key, run in self._heads.items():
            faults += self._audit_run(key, run)
            held.update({block: (run, place) for place, block in enumerate(run.blocks) if block})
        pool, children = self._pool, self._pool.children
        for block in range(1, pool.num_blocks + 1):
            published, found = pool.block_hash[block] is not None, held.get(block)
            if published != (found is not None):
                faults.append(f"I20: block {block} is published but the index does not find it, or the other way round")
            if found is not None and children[block] != self._children_at(*found):
                faults.append(
                    f"I20: block {block} has {self._children_at(*found)} children, its count says {children[block]}"
                )
        return faults

    def _audit_run(self, key: tuple[int, BlockHash], run: TokenRun) -> Iterator[str]:
        pool, name = self._pool, f"the run below {key[0]} that begins with {key[1].hex()}"
        if run.key != key or (run.above is not None and run.above.number != key[0]):
            yield f"I20: {name} is filed under another parent or hash than it holds"
        if run.above is not None and self._heads.get(run.above.run.key) is not run.above.run:
            yield f"I22: {name} hangs below a run that does not exist"
        if len(run.data) != len(run.blocks) * self._step or not run.blocks:
            yield f"I20: {name} has {len(run.blocks)} blocks and tokens of {len(run.data) // self._step}"
        if {place for place, block in enumerate(run.blocks) if not block} != {*run.ghosts}:
            yield f"I20: {name} counts its ghosts wrongly"
        elif run.blocks and not run.blocks[-1] and len(run.blocks) - 1 not in run.branches:
            yield f"I20: {name} ends with a ghost that has no descendants"
        elif run.blocks and key[1] not in (pool.block_hash[run.blocks[0]], run.ghosts.get(0)):
            yield f"I20: {name} begins with the hash of other content"
        for place, branch in run.branches.items():
            sound = (branch.run, branch.place) == (run, place) and branch.runs
            if not sound or any(self._heads.get(other.key) is not other for other in branch.runs):
                yield f"I20: {name} counts the runs below its place {place} wrongly"
        for place, block in enumerate(run.blocks):
            if block and (self._run_of[block] is not run or pool.depth[block] != run.depth + place):
                yield f"I20: block {block} is {place} behind the first of its run, its facts say otherwise"
