"""Exact trie over contents, for schemes whose hashes may collide."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from framework.paged.index.base import PrefixIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash


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
        self._hash: list[BlockHash] = [BlockHash(b"")]
        self._data: list[bytes] = [b""]
        self._kids: list[int] = [0]  # child nodes, ghosts included
        self._resident: list[int] = [0]  # child nodes with a block
        self._block: list[int] = [0]  # 0: a ghost

    def find(self, anchor: int, hashes: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        found: list[int] = []
        step, node = 4 * self._pool.block_size, anchor
        for index, block_hash in enumerate(hashes[:limit]):
            node = self._nodes.get((node, block_hash), 0)
            if not node or not self._block[node] or self._data[node] != data[index * step : (index + 1) * step]:
                break
            found.append(self._block[node])
        return found

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        node, step = self._node[parent] if parent else anchor, 4 * self._pool.block_size
        for at, block_hash in enumerate(hashes):
            node = self._nodes.get((node, block_hash), 0)
            if not node:
                return len(hashes)
            if self._block[node] or self._data[node] != data[at * step : (at + 1) * step]:
                return at
        return len(hashes)

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        above = self._node[parent] if parent else anchor
        node = self._nodes.get((above, block_hash), 0)
        if not node:
            node = self._new_node(above, block_hash, data)
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

    def _new_node(self, above: int, block_hash: BlockHash, data: bytes) -> int:
        if self._unused:
            node = self._unused.pop()
            self._above[node], self._hash[node], self._data[node] = above, block_hash, data
        else:
            node = len(self._above)
            self._above.append(above)
            self._hash.append(block_hash)
            self._data.append(data)
            self._kids.append(0)
            self._resident.append(0)
            self._block.append(0)
        self._nodes[above, block_hash] = node
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
            del self._nodes[above, self._hash[node]]
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
        hash: list[BlockHash],
    ) -> None:
        """Take over a trie kept elsewhere: the nodes it finds, the node of each block, and a column each a fact."""
        self._node = array("i", node)
        self._above, self._kids, self._resident, self._block, self._hash = above, kids, resident, block, hash
        self._nodes = {(above[at], hash[at]): at for at in found}

    def audit(self) -> list[str]:
        pool, faults = self._pool, []
        live = set(self._nodes.values())
        for (above, block_hash), node in self._nodes.items():
            if self._above[node] != above or self._hash[node] != block_hash:
                faults.append(f"I20: node {node} is filed under another parent or hash than it holds")
            if above > 0 and above not in live:
                faults.append(f"I22: node {node} hangs below node {above}, which does not exist")
            if not self._block[node] and not self._kids[node]:
                faults.append(f"I20: ghost node {node} has no descendants")
            block = self._block[node]
            if block and (pool.block_hash[block] != block_hash or self._node[block] != node):
                faults.append(
                    f"I20: the index finds block {block} under {block_hash.hex()}, which the block does not hold"
                )
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
            if pool.block_hash[block] is not None and self._block[self._node[block]] != block:
                faults.append(f"I20: block {block} is published but the index does not find it")
        return faults
