"""The index from content to block: by chained hash, or by an exact trie where hashes may collide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import Any

from framework.paged.pool import BlockPool
from framework.types import BlockHash


class PrefixIndex(ABC):
    """Finds published blocks, holds at most one for a content, and counts each one's resident children.

    `anchor` names a namespace: an integer below 0. `data` are tokens as int32 bytes. A parent of 0 is the root. All
    calls are O(1) a block; removal is amortised.

    Attributes:
        collisions: contents that were not published because their hash named other content.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.collisions = 0

    @abstractmethod
    def find(self, anchor: int, keys: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        """The blocks of the leading contents, at most `limit`, up to the first that is not published. Pure."""

    @abstractmethod
    def insert(self, anchor: int, parent: int, key: BlockHash, data: bytes, block: int) -> int:
        """Publish `block`. Returns it; or the block that holds this content already; or 0 on a collision.

        Only in the first case anything changed (and `collisions` in the last).
        """

    def insert_chain(
        self, anchor: int, parent: int, keys: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """`insert` each block below the holder of the one before, up to the first collision. Sets the pool's `key`.

        Returns:
            The holder of each content, and the places in `blocks` of those newly published.
        """
        step, names = 4 * self._pool.block_size, self._pool.key
        holders: list[int] = []
        new: list[int] = []
        for at, (key, block) in enumerate(zip(keys, blocks, strict=True)):
            published = names[block] is not None
            parent = self.insert(anchor, parent, key, data[at * step : (at + 1) * step], block)
            if not parent:
                break
            holders.append(parent)
            if parent == block and not published:
                names[block] = key
                new.append(at)
        return holders, new

    def count_new(self, anchor: int, parent: int, keys: Sequence[BlockHash], data: bytes) -> int:
        """Of these contents below `parent`, how many leading ones no block holds and `insert` would take. Pure.

        0 of an index that cannot say: nothing is then published before it is computed.
        """
        return 0

    @abstractmethod
    def parent(self, block: int) -> int:
        """The resident parent of a published block, 0 if it is the root or gone."""

    @abstractmethod
    def remove(self, block: int) -> None:
        """Take a published block out. Its children stay and are found again when it is published again."""

    def remove_all(self, blocks: Sequence[int]) -> None:
        """`remove` each of these and clear its `key` in the pool."""
        key, remove = self._pool.key, self.remove
        for block in blocks:
            remove(block)
            key[block] = None

    @abstractmethod
    def clear(self) -> None:
        """Forget everything; `collisions` stays."""

    @abstractmethod
    def audit(self) -> list[str]:
        """What is wrong, recomputed from nothing. One line a fault, empty when all is well."""


class HashIndex(PrefixIndex):
    """For collision-resistant schemes: a dict from chained hash to block. Two blocks with one key are equal.

    A chained hash names the whole prefix, so a block whose ancestors went is found again as soon as they are back.
    `_orphans` counts the resident children of contents that are gone; it and the pool's `children` follow from
    `_parents`, and are kept only once somebody has asked for them.
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self._blocks: dict[BlockHash, int] = {}
        self._parents: list[BlockHash | None] = [None] * (pool.num_blocks + 1)
        self._orphans: dict[BlockHash, int] = {}
        self._counting = False
        pool.count_children, pool.parent_of = self._count, self.parent

    def _count(self, children: array[int]) -> None:
        """Count the children of all contents, and keep the counts from here on."""
        self._counting = True
        for block in self._blocks.values():
            above = self._parents[block]
            if above is None:
                continue
            parent = self._blocks.get(above)
            if parent is None:
                self._orphans[above] = self._orphans.get(above, 0) + 1
            else:
                children[parent] += 1

    def find(self, anchor: int, keys: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        get: Any = self._blocks.get
        return list(iter(map(get, keys[:limit]).__next__, None))

    def count_new(self, anchor: int, parent: int, keys: Sequence[BlockHash], data: bytes) -> int:
        if self._blocks.keys().isdisjoint(keys):
            return len(keys)
        return next(at for at, key in enumerate(keys) if key in self._blocks)

    def insert(self, anchor: int, parent: int, key: BlockHash, data: bytes, block: int) -> int:
        holder = self._blocks.setdefault(key, block)
        if holder != block or self._pool.key[block] is not None:
            return holder
        self._parents[block] = self._pool.key[parent] if parent else None
        if self._counting:
            children = self._pool.children
            children[block] = self._orphans.pop(key, 0) if self._orphans else 0
            if parent:
                children[parent] += 1
        return block

    def insert_chain(
        self, anchor: int, parent: int, keys: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        names, parents, orphans = self._pool.key, self._parents, self._orphans
        above = names[parent] if parent else None
        own = list(blocks)
        free = list(map(names.__getitem__, own)).count(None) == len(own)
        holders = list(map(self._blocks.setdefault, keys, own))
        if free and not orphans and holders == own:
            self._insert_new(parent, above, keys, own)
            return own, [*range(len(own))]
        new: list[int] = []
        for at, (key, block, holder) in enumerate(zip(keys, own, holders, strict=True)):
            if holder == block and names[block] is None:
                names[block] = key
                parents[block] = above
                if self._counting:
                    self._pool.children[block] = orphans.pop(key, 0) if orphans else 0
                    if parent:
                        self._pool.children[parent] += 1
                new.append(at)
            parent, above = holder, key
        return holders, new

    def _insert_new(self, parent: int, above: BlockHash | None, keys: Sequence[BlockHash], blocks: list[int]) -> None:
        """The facts of a chain of contents none of which was there, while no absent parent has children."""
        names, parents = self._pool.key, self._parents
        for block, key in zip(blocks, keys, strict=True):
            names[block] = key
            parents[block] = above
            above = key
        if self._counting:
            children = self._pool.children
            if parent:
                children[parent] += 1
            for block in blocks:
                children[block] = 1
            children[block] = 0

    def parent(self, block: int) -> int:
        key = self._parents[block]
        return 0 if key is None else self._blocks.get(key, 0)

    def remove(self, block: int) -> None:
        key = self._pool.key[block]
        assert key is not None, f"block {block} is not published"
        del self._blocks[key]
        if not self._counting:
            return
        children = self._pool.children
        if children[block]:
            self._orphans[key] = children[block]
            children[block] = 0
        above = self._parents[block]
        if above is not None:
            self._lost_a_child(above)

    def remove_all(self, blocks: Sequence[int]) -> None:
        names, found = self._pool.key, self._blocks
        gone: Any
        if not self._counting:
            for block in blocks:
                gone = names[block]
                names[block] = None
                del found[gone]
            return
        parents, children, orphans = self._parents, self._pool.children, self._orphans
        above: Any = None  # has lost a child that its count still holds: most often it is the next to go
        for block in blocks:
            gone = names[block]
            names[block] = None
            del found[gone]
            below = children[block]
            if above is not None:
                if above == gone:
                    below -= 1
                else:
                    self._lost_a_child(above)
            if below:
                orphans[gone] = below
            above = parents[block]
        if above is not None:
            self._lost_a_child(above)

    def _lost_a_child(self, key: BlockHash) -> None:
        parent = self._blocks.get(key)
        if parent is not None:
            self._pool.children[parent] -= 1
        elif self._orphans[key] > 1:
            self._orphans[key] -= 1
        else:
            del self._orphans[key]

    def clear(self) -> None:
        self._blocks.clear()
        self._orphans.clear()

    def restore(
        self, blocks: dict[BlockHash, int], parents: list[BlockHash | None], orphans: dict[BlockHash, int]
    ) -> None:
        """Take over an index kept elsewhere: block of each name, parent of each block, counts of absent parents."""
        self._blocks, self._parents, self._orphans = blocks, parents, orphans

    def audit(self) -> list[str]:
        pool, faults = self._pool, []
        published = {block for block in range(1, pool.num_blocks + 1) if pool.key[block] is not None}
        for key, block in self._blocks.items():
            if block not in published or pool.key[block] != key:
                faults.append(f"I20: the index finds block {block} under {key.hex()}, which the block does not hold")
        for block in sorted(published):
            key_ = pool.key[block]
            if key_ is not None and self._blocks.get(key_) != block:
                faults.append(f"I20: block {block} is published but the index does not find it")
        counts: dict[BlockHash, int] = {}
        for block in published:
            above = self._parents[block]
            if above is not None:
                counts[above] = counts.get(above, 0) + 1
        for block in sorted(published):
            key_ = pool.key[block]
            expected = counts.pop(key_, 0) if key_ is not None else 0
            if pool.children[block] != expected:
                faults.append(f"I20: block {block} has {expected} children, its count says {pool.children[block]}")
        if counts != self._orphans:
            faults.append(f"I20: {len(counts)} absent parents have resident children, noted {len(self._orphans)}")
        return faults


class TrieIndex(PrefixIndex):
    """For schemes that may collide: an exact trie. A node is (parent node, hash) and its tokens are compared.

    A node is the identity of one prefix. Evicted content whose descendants are resident stays as a ghost node, tokens
    included, so that nothing else can take its place and the descendants are found again once it is published again.
    Ghosts go with their last descendant: none under LRU and any leaf-only policy, at most depth times residents.
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self._nodes: dict[tuple[int, BlockHash], int] = {}
        self._node = array("i", bytes(4 * (pool.num_blocks + 1)))  # of a published block
        self._reset_columns()
        pool.parent_of = self.parent

    def _reset_columns(self) -> None:
        self._unused: list[int] = []
        self._above: list[int] = [0]  # parent node, an anchor below 0 at the root
        self._name: list[BlockHash] = [BlockHash(b"")]
        self._data: list[bytes] = [b""]
        self._kids: list[int] = [0]  # child nodes, ghosts included
        self._resident: list[int] = [0]  # child nodes with a block
        self._block: list[int] = [0]  # 0: a ghost

    def find(self, anchor: int, keys: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        found: list[int] = []
        step, node = 4 * self._pool.block_size, anchor
        for index, key in enumerate(keys[:limit]):
            node = self._nodes.get((node, key), 0)
            if not node or not self._block[node] or self._data[node] != data[index * step : (index + 1) * step]:
                break
            found.append(self._block[node])
        return found

    def count_new(self, anchor: int, parent: int, keys: Sequence[BlockHash], data: bytes) -> int:
        node, step = self._node[parent] if parent else anchor, 4 * self._pool.block_size
        for at, key in enumerate(keys):
            node = self._nodes.get((node, key), 0)
            if not node:
                return len(keys)
            if self._block[node] or self._data[node] != data[at * step : (at + 1) * step]:
                return at
        return len(keys)

    def insert(self, anchor: int, parent: int, key: BlockHash, data: bytes, block: int) -> int:
        above = self._node[parent] if parent else anchor
        node = self._nodes.get((above, key), 0)
        if not node:
            node = self._new_node(above, key, data)
        elif self._data[node] != data:
            self.collisions += 1
            return 0
        elif self._block[node]:
            return self._block[node]
        self._block[node] = block
        self._node[block] = node
        self._pool.children[block] = self._resident[node]
        if above > 0:
            self._resident[above] += 1
            self._pool.children[parent] += 1
        return block

    def _new_node(self, above: int, key: BlockHash, data: bytes) -> int:
        if self._unused:
            node = self._unused.pop()
            self._above[node], self._name[node], self._data[node] = above, key, data
        else:
            node = len(self._above)
            self._above.append(above)
            self._name.append(key)
            self._data.append(data)
            self._kids.append(0)
            self._resident.append(0)
            self._block.append(0)
        self._nodes[above, key] = node
        if above > 0:
            self._kids[above] += 1
        return node

    def parent(self, block: int) -> int:
        above = self._above[self._node[block]]
        return self._block[above] if above > 0 else 0

    def remove(self, block: int) -> None:
        node = self._node[block]
        above = self._above[node]
        self._block[node] = self._node[block] = 0
        self._pool.children[block] = 0
        if above > 0:
            self._resident[above] -= 1
            if self._block[above]:
                self._pool.children[self._block[above]] -= 1
        while node > 0 and not self._block[node] and not self._kids[node]:
            above = self._above[node]
            del self._nodes[above, self._name[node]]
            self._data[node] = b""
            self._unused.append(node)
            if above > 0:
                self._kids[above] -= 1
            node = above

    def clear(self) -> None:
        self._nodes.clear()
        self._reset_columns()

    def restore(
        self,
        found: Sequence[int],
        node: Sequence[int],
        above: list[int],
        kids: list[int],
        resident: list[int],
        block: list[int],
        name: list[BlockHash],
    ) -> None:
        """Take over a trie kept elsewhere: the nodes it finds, the node of each block, and a column each a fact."""
        self._node = array("i", node)
        self._above, self._kids, self._resident, self._block, self._name = above, kids, resident, block, name
        self._nodes = {(above[at], name[at]): at for at in found}

    def audit(self) -> list[str]:
        pool, faults = self._pool, []
        live = set(self._nodes.values())
        for (above, key), node in self._nodes.items():
            if self._above[node] != above or self._name[node] != key:
                faults.append(f"I20: node {node} is filed under another parent or name than it holds")
            if above > 0 and above not in live:
                faults.append(f"I22: node {node} hangs below node {above}, which does not exist")
            if not self._block[node] and not self._kids[node]:
                faults.append(f"I20: ghost node {node} has no descendants")
            block = self._block[node]
            if block and (pool.key[block] != key or self._node[block] != node):
                faults.append(f"I20: the index finds block {block} under {key.hex()}, which the block does not hold")
        kids: dict[int, list[int]] = {}
        for node in live:
            kids.setdefault(self._above[node], []).append(node)
        for node in live:
            below = kids.get(node, [])
            resident = sum(1 for kid in below if self._block[kid])
            if (self._kids[node], self._resident[node]) != (len(below), resident):
                faults.append(f"I20: node {node} counts its children wrongly")
            block = self._block[node]
            if block and pool.children[block] != resident:
                faults.append(f"I20: block {block} has {resident} children, its count says {pool.children[block]}")
        for block in range(1, pool.num_blocks + 1):
            if pool.key[block] is not None and self._block[self._node[block]] != block:
                faults.append(f"I20: block {block} is published but the index does not find it")
        return faults
