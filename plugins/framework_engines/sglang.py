"""Our eviction policies in SGLang's radix cache, as its `EvictionStrategy`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import Component
from framework.types import BlockHash
from framework_engines.host_blocks import HostBlocks, build_policy

INTERFACE = "sglang 0.5.23, sglang/srt/mem_cache/evict_policy.py and radix_cache.py"
"""Where the interface was taken from."""


def as_sglang(policy: Component, *, num_blocks: int, page_size: int = 1, seed: int = 0) -> Any:
    """An object with SGLang's `get_priority(node)`: the radix cache evicts the leaf whose priority is least.

    Put it into a cache as `tree.eviction_strategy = as_sglang("s3fifo", num_blocks=...)`, or have SGLang build it by
    name: `sglang.srt.mem_cache.utils._EVICTION_POLICY_FACTORIES["s3fifo"] = lambda: as_sglang(...)`.

    A node counts as one block: its depth is in nodes, `num_tokens` are those from the root to its end. SGLang evicts
    leaves only, whatever the policy would choose.

    It learns, at the start of each round of evictions, what happened to the tree since the last: nodes that
    are new, were used, locked or evicted, in the order of their last use, uses of one node in between counting as
    one hit. Then it ranks the whole tree by naming victims: each round sorts and copies the facts of all nodes.
    Interface: `INTERFACE`.

    Args:
        policy: an installed policy's name, a mapping with a name and options, a class, or an object (copied).
        num_blocks: most nodes the tree may hold: the pool's tokens / `page_size`.
        page_size: SGLang's, tokens.
        seed: for policies that draw.

    Raises:
        InvalidArgument: no eviction policy; `num_blocks` or `page_size` below 1.
        Unsupported: the policy reads the future.
    """
    if num_blocks < 1 or page_size < 1:
        raise InvalidArgument(f"num_blocks and page_size must be at least 1, found {num_blocks} and {page_size}")
    return OrderStrategy(build_policy(policy, num_blocks, block_size=page_size, seed=seed), num_blocks)


def one_page_nodes(tree: Any) -> None:
    """From here on every node of this RadixCache holds one page, so that a page is used and evicted by itself.

    SGLang's node is a run of pages without a branch. It is evicted as a whole, though one page may be enough, and a
    prompt that ends within one makes all of it recently used. With nodes of one page neither happens, and LRU evicts
    what our `radix` and `leaf_only` allocators evict. Costs a Python step a page in `insert`.

    Args:
        tree: SGLang's, before its first insert.

    Raises:
        Unsupported: it has nodes, or not the methods that are needed.
    """
    missing = [name for name in ("_insert_helper", "_split_node", "root_node", "page_size") if not hasattr(tree, name)]
    if missing:
        raise Unsupported(f"{type(tree).__name__} has no {', '.join(missing)}; this was written for {INTERFACE}")
    if tree.root_node.children:
        raise Unsupported("the tree has nodes already; call one_page_nodes before its first insert")
    insert, page = tree._insert_helper, tree.page_size

    def inserted(*args: Any, **kwargs: Any) -> Any:
        prefix, node = insert(*args, **kwargs)
        while len(node.key) > page:
            above = tree._split_node(node.key, node, page)
            above.last_access_time, above.creation_time = node.last_access_time, node.creation_time
        return prefix, node

    tree._insert_helper = inserted


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of the tree, the nodes above it and the tokens to its end."""

    node: Any
    depth: int
    num_tokens: int


class OrderStrategy:
    """The rank at which the policy would evict a node, taken anew in each round of evictions.

    SGLang tells a strategy nothing but which priorities it wants: those of all leaves when a round begins, then those
    of parents that became leaves. A node that was asked for in this round, or was not ranked, begins the next one.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        self._host = HostBlocks(policy, num_blocks)
        self._rank: dict[Any, int] = {}
        self._asked: set[int] = set()
        self._used: dict[Any, float] = {}
        self._parent: dict[Any, int] = {}

    def get_priority(self, node: Any) -> int:
        """0 for the first to be evicted.

        Raises:
            InvalidArgument: the node is locked: it is no candidate.
            OutOfBlocks: the tree holds more than `num_blocks` nodes.
        """
        if node.id in self._asked or node.id not in self._rank:
            self._observe(_places(node))
            self._rank, self._asked = self._order(), set()
        if node.id not in self._rank:
            raise InvalidArgument(f"node {node.id} has no priority: {node.lock_ref} requests hold it or one below it")
        self._asked.add(node.id)
        return self._rank[node.id]

    def _observe(self, places: list[_Place]) -> None:
        """Tell the policy what happened to the tree since the last round. `places` in order of last use."""
        host, present = self._host, {place.node.id for place in places}
        for name in [name for name in host.block_of if name not in present]:
            host.evict(name)
        for place in places:
            block = host.block_of.get(place.node.id)
            if block is not None:
                if host.depth[block] != place.depth:  # a node above it was split
                    host.pin([place.node.id])  # a policy may order candidates by depth: it is released again below
                _describe(host, block, place)
        for _, request in groupby(self._events(places), key=lambda event: event[0]):
            self._tell([place for _, _, _, place in request])
        self._used = {place.node.id: place.node.last_access_time for place in places}
        self._parent = {place.node.id: place.node.parent.id for place in places}
        host.pin([place.node.id for place in places if place.node.lock_ref])
        for place in places:
            if not place.node.lock_ref:
                host.release([place.node.id])

    def _events(self, places: list[_Place]) -> list[tuple[float, int, int, _Place]]:
        """(time, -depth, node id, place) of each creation and last use since the last round, in order."""
        events = []
        for place in places:
            node = place.node
            since = self._used.get(node.id)
            if since is None:
                since = node.creation_time
                events.append((since, -place.depth, node.id, place))
            if node.last_access_time > since:
                events.append((node.last_access_time, -place.depth, node.id, place))
        return sorted(events, key=lambda event: event[:3])

    def _tell(self, request: list[_Place]) -> None:
        """What one request found and what it added, deepest first."""
        host = self._host
        host.tick()
        added = [place for place in request if place.node.id not in host.block_of]
        host.hit([place.node.id for place in request if place.node.id in host.block_of])
        for place in added:
            host.add(place.node.id, _key(place.node))
            _describe(host, host.block_of[place.node.id], place)
        host.admit([place.node.id for place in added])
        host.release([place.node.id for place in added])

    def _order(self) -> dict[Any, int]:
        """Every candidate's rank, by a copy of the policy that is made to evict them all."""
        host, order = copy.deepcopy(self._host), dict[Any, int]()
        for rank in range(sum(host.host.candidate)):
            name = host.victim()
            order[name] = rank
            host.evict(name)
            parent = host.block_of.get(self._parent[name])
            if parent is not None:
                host.children[parent] -= 1
        return order


def _describe(host: HostBlocks, block: int, place: _Place) -> None:
    host.depth[block], host.num_tokens[block] = place.depth, place.num_tokens
    host.children[block], host.priority[block] = len(place.node.children), place.node.priority


def _places(node: Any) -> list[_Place]:
    """The whole tree that `node` is in, without its root, in order of last use; of one request the deepest first."""
    while node.parent is not None:
        node = node.parent
    places: list[_Place] = []
    stack = [_Place(node, -1, 0)]
    while stack:
        above = stack.pop()
        for child in above.node.children.values():
            stack.append(_Place(child, above.depth + 1, above.num_tokens + len(child.key)))
            places.append(stack[-1])
    return sorted(places, key=lambda place: (place.node.last_access_time, -place.depth, place.node.id))


def _key(node: Any) -> BlockHash:
    """The content's name: SGLang's chained hash where it was computed, else the node's id."""
    chained = node.hash_value
    return BlockHash(str(chained[-1]).encode() if chained else f"node {node.id}".encode())
