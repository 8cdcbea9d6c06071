"""Names of contents, and the index from them to blocks: a trie, and the tokens where names may collide."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument
from framework.guard.hash import GuardedHash
from framework.interfaces.allocator import Hit
from framework.interfaces.hash import HashScheme
from framework.paged.pool import MANY, BlockPool, indices
from framework.types import ROOT_NAMESPACE, BlockHash, Contents, Namespace, TokenArray

_MAX_NAMESPACES = 65_536
_MAX_MARKS = 1_048_576


class BlockHashes(tuple[BlockHash, ...]):
    """Chained hashes that know the namespace they were made for."""

    namespace: Namespace

    @classmethod
    def of(cls, namespace: Namespace, hashes: Iterable[BlockHash]) -> BlockHashes:
        """These hashes, made for this namespace."""
        made = cls(hashes)
        made.namespace = namespace
        return made


def _first_token(content: tuple[int, int, str]) -> int:
    return max(content[0], 0)


class BlockHasher:
    """A hash scheme, whose names are checked, with the roots of the namespaces seen.

    A root is a hash and an anchor: an integer below 0 that stands for the namespace in a PrefixIndex.

    The name of a block that contents touch is that of its tokens below a root of its own: of the parent's name, and of
    which part of which content is at which of its tokens. So it is as long and as safe as any name of the scheme.
    """

    def __init__(self, scheme: HashScheme, block_size: int) -> None:
        self._scheme = GuardedHash(scheme, block_size)
        self._block_size = block_size
        self._roots: dict[Namespace, tuple[BlockHash, int]] = {}
        self._last_anchor = self._last_mark = 0
        self._marks: dict[tuple[int, Contents], int] = {}

    def root(self, namespace: Namespace) -> tuple[BlockHash, int]:
        """What the namespace's first blocks hang below: hash and anchor."""
        namespace = namespace.root
        found = self._roots.get(namespace)
        if found is None:
            root = self._scheme.root(namespace)
            if len(self._roots) >= _MAX_NAMESPACES:  # content of the oldest can no longer be hit, and ages out
                del self._roots[next(iter(self._roots))]
            self._last_anchor -= 1
            found = self._roots[namespace] = (root, self._last_anchor)
        return found

    def of(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None) -> tuple[int, BlockHashes]:
        """The anchor, and the hashes of all full blocks of `tokens` (n,) int32; those of `previous` are reused."""
        (root, anchor), size = self.root(namespace), self._block_size
        if previous is None or not previous.hashes:
            return anchor, BlockHashes.of(namespace, self.blocks(root, tokens, namespace))
        known = previous.hashes
        self.check(known, namespace)
        if isinstance(known, BlockHashes) and len(known) == len(tokens) // size:
            return anchor, known
        known = known[: len(tokens) // size]
        rest = self.blocks(known[-1] if known else root, tokens[len(known) * size :], namespace, len(known))
        return anchor, BlockHashes.of(namespace, (*known, *rest))

    def blocks(
        self, parent: BlockHash, tokens: TokenArray, namespace: Namespace = ROOT_NAMESPACE, first: int = 0
    ) -> list[BlockHash]:
        """The hashes of all full blocks of `tokens` (n,) int32, which follow `first` blocks of which `parent` names the
        last."""
        if not namespace.contents:
            return self._scheme.blocks(parent, tokens)
        size, names, last = self._block_size, list[BlockHash](), len(tokens) // self._block_size
        for block in (*self._touched(namespace, first, first + last), first + last):
            at = block - first
            names += self._scheme.blocks(names[-1] if names else parent, tokens[len(names) * size : at * size])
            if at < last:
                there = namespace.within(block * size, (block + 1) * size)
                own = self._scheme.root(Namespace(model=(names[-1] if names else parent).hex(), contents=there))
                names += self._scheme.blocks(own, tokens[at * size : (at + 1) * size])
        return names

    def _touched(self, namespace: Namespace, first: int, last: int) -> list[int]:
        """The blocks from `first` to before `last` that contents touch."""
        size = self._block_size
        spans = (range(max(start // size, first), min(-(-end // size), last)) for start, end, _ in namespace.contents)
        return sorted({block for span in spans for block in span})

    def comparable(self, tokens: TokenArray, namespace: Namespace, first: int = 0) -> TokenArray:
        """`tokens` (n,) int32, which follow `first` blocks, as an index that compares tokens is to see them.

        In each block a number below 0, which stands for the token and the contents that begin or go on there, is in the
        place of each token at which some do.
        """
        if not namespace.contents:
            return tokens
        size, marked = self._block_size, tokens.copy()
        for block in self._touched(namespace, first, first - (-len(tokens) // size)):
            start = (block - first) * size
            there = namespace.within(block * size, (block + 1) * size)
            for place, begun in groupby(there, _first_token):
                if start + place < len(tokens):
                    marked[start + place] = self._mark(int(tokens[start + place]), tuple(begun))
        return marked

    def _mark(self, token: int, contents: Contents) -> int:
        """The number that stands for these; never for others, though what was not asked for of late gets a new one."""
        if len(self._marks) >= _MAX_MARKS:
            self._marks.clear()
        mark = self._marks.setdefault((token, contents), self._last_mark - 1)
        self._last_mark = min(self._last_mark, mark)
        return mark

    def check(self, hashes: Sequence[BlockHash], namespace: Namespace) -> None:
        """Refuse hashes made for another namespace.

        Raises:
            InvalidArgument.
        """
        if isinstance(hashes, BlockHashes) and hashes.namespace != namespace:
            raise InvalidArgument(f"a hit looked up in {hashes.namespace} was used in {namespace}; look it up again")


class PrefixIndex:
    """Finds published blocks, and counts each one's resident children. What it publishes is in `pool.block_hash`.

    A node is one content below another one, or below the root of a namespace. A node finds its first child without a
    dict, so that the contents of a prompt are published and removed all at once.

    Evicted content whose descendants are resident stays as a ghost, so that they are found again once it is published
    again. Where a name stands for the whole prefix, a ghost is found by its name and needs nothing above it; there are
    no more ghosts than blocks. Otherwise it keeps its tokens and its place, which no other content takes; then ghosts
    go with their last descendant: none under LRU and any leaf-only policy, at most depth times residents.

    `anchor` names a namespace: an integer below 0. `data` are tokens as int32 bytes. A parent of 0 is the root. All
    calls are O(1) a block; removal is amortised. Some 30 bytes a block, and the tokens where they are compared.

    Args:
        compares_tokens: whether it needs `data` to tell contents apart; else that may be empty.
        keeps_duplicates: publish a block beside others of the same content, instead of naming the one that has it.
            Lookups find the block published first, which also counts the children of all; when it goes, the next takes
            over. Source: vLLM 0.33.0, vllm/v1/core/block_pool.py, BlockHashToBlockMap.

    Attributes:
        collisions: contents that were not published because their hash is also that of other content.
    """

    def __init__(self, pool: BlockPool, *, compares_tokens: bool, keeps_duplicates: bool = False) -> None:
        self.compares_tokens = compares_tokens
        self.keeps_duplicates = keeps_duplicates
        self.collisions = 0
        self._pool = pool
        self._step = 4 * pool.block_size
        self._node = array("i", bytes(4 * (pool.num_blocks + 1)))  # of a published block
        self._others: dict[tuple[int, BlockHash], int] = {}  # contents below a root, and all but the first child
        self._ghosts: dict[int, BlockHash] = {}  # nodes without a block
        self._floating: dict[BlockHash, int] = {}  # nodes below nothing, found by name
        self._later: dict[int, dict[int, None]] = {}  # of a node, the blocks published after the first
        self._above = array("i", [0])  # columns by node: the parent node, an anchor at the root, 0 if floating
        self._first = array("i", [0])  # a child node that is not in `_others`, 0 if there is none
        self._kids = array("i", [0])  # child nodes, ghosts included
        self._resident = array("i", [0])  # blocks of child nodes
        self._block = array("i", [0])  # 0: a ghost
        self._data = bytearray(self._step)  # tokens
        self._unused = array("i")
        self._make_room(pool.num_blocks)
        pool.parent_of = self.parent

    def _make_room(self, count: int) -> None:
        """Let there be `count` unused nodes."""
        if len(self._unused) < count:
            size, more = len(self._above), count + len(self._above) // 2
            self._unused.extend(range(size + more - 1, size - 1, -1))
            for column in (self._above, self._first, self._kids, self._resident, self._block):
                column.extend(array("i", bytes(4 * more)))
            if self.compares_tokens:
                self._data.extend(bytes(self._step * more))

    def find(self, anchor: int, hashes: Sequence[BlockHash], data: bytes, limit: int) -> list[int]:
        """The blocks of the leading contents, at most `limit`, up to the first that is not published. Pure."""
        block_of, first, hash_of, others = self._block, self._first, self._pool.block_hash, self._others
        blocks: list[int] = []
        node = anchor
        for block_hash in hashes[:limit]:
            below = first[node] if node > 0 else 0
            block = block_of[below]
            if not block or hash_of[block] != block_hash:
                below = others.get((node, block_hash), 0)
                block = block_of[below]
                if not block:
                    break
            blocks.append(block)
            node = below
        if blocks and self.compares_tokens:
            tokens = np.frombuffer(data, dtype=np.int32)[: len(blocks) * self._pool.block_size]
            nodes = _view(self._node)[indices(blocks)]
            same = (self._tokens()[nodes] == tokens.reshape(len(blocks), -1)).all(axis=1)
            if not same.all():
                del blocks[int(same.argmin()) :]
        return blocks

    def _tokens(self) -> npt.NDArray[np.int32]:
        """Tokens by node, (nodes, S) int32; not to be kept, since the columns grow."""
        return np.frombuffer(self._data, dtype=np.int32).reshape(-1, self._pool.block_size)

    def _child(self, node: int, block_hash: BlockHash) -> int:
        """The node of this hash below that one; 0 if there is none."""
        below = self._first[node] if node > 0 else 0
        if below and self._hash(below) == block_hash:
            return below
        return self._others.get((node, block_hash), 0) or self._floating.get(block_hash, 0)

    def _hash(self, node: int) -> BlockHash | None:
        block = self._block[node]
        return self._pool.block_hash[block] if block else self._ghosts[node]

    def _is_of(self, node: int, data: bytes) -> bool:
        return not self.compares_tokens or self._data.startswith(data, node * self._step)

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        """How many leading ones of these contents below `parent` no block holds and `insert` would take. Pure."""
        node, step = self._node[parent] if parent else anchor, self._step
        for offset, block_hash in enumerate(() if self.keeps_duplicates else hashes):
            node = self._child(node, block_hash)
            if not node and not self._floating:
                break
            if node and (self._block[node] or not self._is_of(node, data[offset * step : (offset + 1) * step])):
                return offset
        return len(hashes)

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        """Publish `block`. Returns it; or the block that holds this content already; or 0 on a collision.

        Only in the first case anything changed (and `collisions` in the last). The caller sets `pool.block_hash`.
        """
        if self._pool.block_hash[block] is not None:
            return block
        above = self._node[parent] if parent else anchor
        node = self._child(above, block_hash)
        if not node:
            node = self._new(data)
            self._attach(node, above, block_hash)
        elif not self._is_of(node, data):
            self.collisions += 1
            return 0
        elif self._block[node] and not self.keeps_duplicates:
            return self._block[node]
        elif not self._block[node]:
            del self._ghosts[node]
            if not self._above[node]:
                del self._floating[block_hash]
                self._attach(node, above, block_hash)
        self._node[block] = node
        if self._block[node]:
            self._later.setdefault(node, {})[block] = None
        else:
            self._block[node] = block
            self._pool.children[block] = self._resident[node]
        self._count_child(above, 1)
        return block

    def _new(self, data: bytes) -> int:
        self._make_room(1)
        node = self._unused.pop()
        if self.compares_tokens:
            self._data[node * self._step : (node + 1) * self._step] = data
        return node

    def _attach(self, node: int, above: int, block_hash: BlockHash) -> None:
        self._above[node] = above
        if above > 0:
            self._kids[above] += 1
            if not self._first[above]:
                self._first[above] = node
                return
        if above:
            self._others[above, block_hash] = node
        else:
            self._floating[block_hash] = node

    def _detach(self, node: int, above: int, block_hash: BlockHash) -> None:
        if above > 0:
            self._kids[above] -= 1
            if self._first[above] == node:
                self._first[above] = 0
                return
        if above:
            del self._others[above, block_hash]
        else:
            del self._floating[block_hash]

    def _count_child(self, above: int, more: int) -> None:
        if above > 0:
            self._resident[above] += more
            if self._block[above]:
                self._pool.children[self._block[above]] += more

    def insert_chain(
        self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """`insert` each block below the holder of the one before, up to the first collision. Sets `pool.block_hash`.

        Returns:
            The holder of each content, and the places in `blocks` of those newly published.
        """
        above, hash_of = self._node[parent] if parent else anchor, self._pool.block_hash
        if len(blocks) >= MANY and not self._floating and not self._child(above, hashes[0]):
            self._insert_new(above, hashes, data, blocks)  # what is below new content is new
            for block, block_hash in zip(blocks, hashes, strict=True):
                hash_of[block] = block_hash
            return blocks, range(len(blocks))
        holders: list[int] = []
        new: list[int] = []
        for offset, (block_hash, block) in enumerate(zip(hashes, blocks, strict=True)):
            published = hash_of[block] is not None
            parent = self.insert(
                anchor, parent, block_hash, data[offset * self._step : (offset + 1) * self._step], block
            )
            if not parent:
                break
            holders.append(parent)
            if parent == block and not published:
                hash_of[block] = block_hash
                new.append(offset)
        return holders, new

    def _insert_new(self, above: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]) -> None:
        count = len(blocks)
        self._make_room(count)
        nodes = self._unused[-count:]
        del self._unused[-count:]
        self._attach(nodes[0], above, hashes[0])
        node_ids, where = indices(nodes), indices(blocks)
        _view(self._above)[node_ids[1:]] = _view(nodes)[:-1]
        _view(self._first)[node_ids[:-1]] = _view(nodes)[1:]
        _view(self._kids)[node_ids[:-1]] = _view(self._resident)[node_ids[:-1]] = 1
        _view(self._block)[node_ids] = where
        _view(self._node)[where] = node_ids
        if self.compares_tokens:
            self._tokens()[node_ids] = np.frombuffer(data, dtype=np.int32).reshape(count, -1)
        _view(self._pool.children)[where[:-1]] = 1
        self._count_child(above, 1)

    def parent(self, block: int) -> int:
        """The resident parent of a published block, 0 if it is the root or gone."""
        above = self._above[self._node[block]]
        return self._block[above] if above > 0 else 0

    def remove(self, blocks: Sequence[int]) -> None:
        """Take published blocks out, and clear their `pool.block_hash`.

        Their children stay, and are found again when the content above them is published again.
        """
        hash_of: list[Any] = self._pool.block_hash
        plain = not (self._ghosts or self._later or self._floating)
        if len(blocks) >= MANY and plain and self._remove_leaves(blocks):
            for block in blocks:
                hash_of[block] = None
            return
        for block in blocks:
            node, block_hash = self._node[block], hash_of[block]
            self._count_child(self._above[node], -1)
            self._node[block], hash_of[block] = 0, None
            self._block[node] = heir = self._heir(node, block)
            self._pool.children[block] = 0
            self._pool.children[heir] = self._resident[node] if heir else 0
            if not heir:
                self._ghosts[node] = block_hash
                self._forget(node)

    def _heir(self, node: int, block: int) -> int:
        """Who holds a content when this one of its blocks is gone; 0 for nobody."""
        later, holder = self._later.get(node), self._block[node]
        if later is None:
            return 0
        heir = next(iter(later)) if holder == block else holder
        del later[heir if holder == block else block]
        if not later:
            del self._later[node]
        return heir

    def _forget(self, node: int) -> None:
        """Let a ghost go as far as nothing below needs it, and those above that were kept for it alone."""
        while node > 0 and not self._block[node]:
            above, block_hash = self._above[node], self._ghosts[node]
            if not self._kids[node]:
                self._detach(node, above, block_hash)
                del self._ghosts[node]
                self._unused.append(node)
            elif above and not self.compares_tokens and block_hash not in self._floating:
                self._detach(node, above, block_hash)
                self._above[node], self._floating[block_hash] = 0, node
            else:
                return
            node = above

    def _remove_leaves(self, blocks: Sequence[int]) -> bool:
        """Take out blocks all of whose descendants are among them; whether they are, else nothing changed."""
        where, kids, first, block_of = indices(blocks), _view(self._kids), _view(self._first), _view(self._block)
        nodes = _view(self._node)[where].astype(np.intp)
        above = _view(self._above)[nodes].astype(np.intp)
        inner = above > 0
        outer = above[inner]
        only = kids[outer] == 1
        rest = outer[~only]
        kids[outer[only]] = 0  # a parent of one is there once
        np.subtract.at(kids, rest, 1)
        if kids[nodes].any():
            kids[outer[only]] = 1
            np.add.at(kids, rest, 1)
            return False
        _view(self._resident)[outer] = kids[outer]  # every child has one block
        _view(self._pool.children)[block_of[outer]] = kids[outer]
        listed = ~inner
        listed[inner] = first[outer] != nodes[inner]
        for place in np.flatnonzero(listed).tolist():
            block_hash: Any = self._pool.block_hash[blocks[place]]
            del self._others[int(above[place]), block_hash]
        first[above[~listed]] = block_of[nodes] = 0
        _view(self._node)[where] = 0
        self._unused.frombytes(nodes.astype(np.int32).tobytes())
        return True

    def restore(
        self,
        found: Sequence[int],
        node: Sequence[int],
        above: Sequence[int],
        kids: Sequence[int],
        resident: Sequence[int],
        block: Sequence[int],
        hash: Sequence[BlockHash],
    ) -> None:
        """Take over a trie kept elsewhere: the nodes it finds, the node of each block, and a column each a fact."""
        self._node, self._above, self._kids = array("i", node), array("i", above), array("i", kids)
        self._resident, self._block = array("i", resident), array("i", block)
        self._first = array("i", bytes(4 * len(above)))
        self._ghosts = {number: hash[number] for number in found if not block[number]}
        self._others = {(above[number], hash[number]): number for number in found}

    def nodes(self) -> Iterator[tuple[int, BlockHash | None]]:
        """Each node that is found, and the hash it is found by."""
        yield from ((node, block_hash) for (_, block_hash), node in self._others.items())
        yield from ((node, block_hash) for block_hash, node in self._floating.items())
        yield from ((node, self._hash(node)) for node in self._first if node)

    def audit(self) -> list[str]:
        """What is wrong, recomputed from nothing. One line a fault, empty when all is well."""
        faults = list[str]()
        kids: dict[int, list[int]] = {}
        reachable = dict(self.nodes())
        for node in reachable:
            kids.setdefault(self._above[node], []).append(node)
        for node, block_hash in reachable.items():
            faults += self._audit_node(node, block_hash, reachable.keys(), kids.get(node, []))
        for block, published_hash in enumerate(self._pool.block_hash):
            holder = self._block[self._node[block]]
            if published_hash is not None and holder != block and block not in self._later.get(self._node[block], ()):
                faults.append(f"I20: block {block} is published but the index does not find it")
        for above, block_hash in self._others:
            if self._above[self._others[above, block_hash]] != above:
                faults.append(f"I20: a node is filed under {above}, which is not its parent")
        return faults

    def _audit_node(self, node: int, block_hash: Any, found: Any, below: list[int]) -> Iterator[str]:
        pool, block, above = self._pool, self._block[node], self._above[node]
        name = f"node {node}, {block_hash.hex() if block_hash else None},"
        if above > 0 and above not in found:
            yield f"I22: {name} hangs below node {above}, which does not exist"
        if block and (pool.block_hash[block] != block_hash or self._node[block] != node):
            yield f"I20: the index finds block {block} as {name} which the block does not hold"
        if (not block) != (node in self._ghosts) or not (block or below):
            yield f"I20: {name} is a ghost without descendants, or not known as one"
        if not above and self._floating.get(block_hash) != node:
            yield f"I20: {name} hangs below nothing"
        resident = sum((self._block[kid] > 0) + len(self._later.get(kid, ())) for kid in below)
        if (self._kids[node], self._resident[node]) != (len(below), resident):
            yield f"I20: {name} counts its children wrongly"
        if block and pool.children[block] != resident:
            yield f"I20: block {block} has {resident} children, its count says {pool.children[block]}"


def _view(column: array[int]) -> npt.NDArray[np.int32]:
    """A column to index with many numbers at once; not to be kept, since columns grow."""
    return np.frombuffer(column, dtype=np.int32)


def prefix_index(pool: BlockPool, hash: HashScheme, duplicates: str, *, leaf_only: bool) -> PrefixIndex:
    """The index for names of this scheme, and for contents that several blocks may hold ("keep") or not ("merge").

    Raises:
        InvalidArgument: duplicates that are neither, or kept with `leaf_only` or with names that may collide.
    """
    if duplicates not in ("merge", "keep"):
        raise InvalidArgument(f"duplicates is merge or keep, found {duplicates!r}")
    keep = duplicates == "keep"
    if keep and not hash.collision_resistant:
        raise InvalidArgument(
            f"duplicates=keep finds equal contents by hash, and those of {type(hash).__name__} may collide; take a "
            "collision-resistant scheme such as sha256, or duplicates=merge"
        )
    if keep and leaf_only:
        raise InvalidArgument("duplicates=keep lets a block be in use below one that is not; set leaf_only=false")
    return PrefixIndex(pool, compares_tokens=not hash.collision_resistant, keeps_duplicates=keep)
