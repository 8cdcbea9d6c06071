"""The reference model of cache-only replay: blocks that an eviction policy hits when each request is one atomic access.

The mode of published hit-rate tables: no time passes inside a request, no output is cached, only the request at
hand is pinned. The policy is an ordinary `EvictionPolicy`, driven by the same callbacks as in an engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from framework.errors import InvalidArgument
from framework.guard.policy import PolicyHost
from framework.interfaces.eviction import BlockView, ComputedColumn, ConstantColumn, EvictionPolicy, SizedView
from framework.paged.pool import LastRequests
from framework.registry.components import build_component
from framework.types import UNKNOWN_REQUEST
from framework_cache_only.parts import CountedBelow, Losses
from framework_cache_only.paths import CacheOnlyResult, RequestPaths, summarise
from framework_cache_only.replay_core import PYTHON, GuardedReplayCore, ReplayCore


def replay(
    paths: RequestPaths,
    policy: EvictionPolicy,
    num_blocks: int,
    *,
    leaf_first: bool = False,
    bypass: bool = False,
    on_evict: Callable[[int, int], Any] | None = None,
    below: CountedBelow | None = None,
    losses: Losses | None = None,
    progress: Callable[[int], Any] | None = None,
) -> CacheOnlyResult:
    """Replay the request model: look up, touch, admit, evict, insert.

    Request i, in order: (1) its longest resident prefix is hit; (2) all its resident blocks are touched, also those
    cut off from the root (orphans); (3) its missing blocks are admitted in prefix order, at most as many as leave
    `num_blocks` of its blocks resident; (4) the policy names victims, one at a time and only when needed, among the
    blocks of other requests; (5) the new blocks are inserted. All access counts are i + 1; `now` is
    `RequestPaths.times` of i: when it arrived.

    Args:
        leaf_first: a victim with resident children is set aside until its last child is gone, and the policy is asked
            again; then it is released anew. Needs nothing of the policy.
        bypass: blocks of the current request compete too: all are inserted, then the policy trims the cache to
            `num_blocks`. A new block that goes at once was declined: it counts neither as admitted nor as evicted.
        on_evict: called with (request, node) at each eviction.
        below: tiers below the pool, fresh. A request then hits the longest prefix whose blocks lie in any tier, before
            anything moves; the result's hits are those of all tiers, its admissions and evictions the pool's.
        losses: called with what is evicted and declined.
        progress: called now and then with the block references replayed since the last call.

    Raises:
        InvalidArgument: `num_blocks` below 1; `below` together with `bypass` or `on_evict`.
        PluginError: the policy named a block that is no candidate.

    O(1) Python steps a reference besides the policy's own. Memory: about 100 bytes a block of capacity, 16 bytes a
    node of the trace, and the paths.
    """
    if num_blocks < 1:
        raise InvalidArgument(f"num_blocks must be at least 1, found {num_blocks}")
    if below is not None:
        if bypass or on_evict is not None:
            raise InvalidArgument("tiers below the pool go neither with bypass nor with on_evict; leave these out")
        on_evict = below.evicted
    run = _Replay(paths, policy, num_blocks, leaf_first, bypass, on_evict, below, losses)
    return run.run(paths.walk() if progress is None else _followed(paths.walk(), progress))


_REFERENCES_A_CALL = 2**16


def _followed(walk: Iterator[list[int]], progress: Callable[[int], Any]) -> Iterator[list[int]]:
    """The same paths; what was asked for before is said each so many references, and at the end."""
    since = 0
    for path in walk:
        yield path
        since += len(path)
        if since >= _REFERENCES_A_CALL:
            progress(since)
            since = 0
    progress(since)


class _Names(ComputedColumn):
    """Nodes' names: what a policy asks for most often, without a further call."""

    def __init__(self, node_of: list[int]) -> None:
        super().__init__(node_of.__getitem__, len(node_of))
        self._node_of = node_of

    def __getitem__(self, block: Any) -> Any:
        return self._node_of[block].to_bytes(8, "little")


class _Replay:
    """The state of one replay: which node sits in which block, and the facts a policy may read."""

    def __init__(
        self,
        paths: RequestPaths,
        policy: EvictionPolicy,
        num_blocks: int,
        leaf_first: bool,
        bypass: bool,
        on_evict: Callable[[int, int], Any] | None,
        below: CountedBelow | None = None,
        losses: Losses | None = None,
    ) -> None:
        self.paths, self.policy, self.num_blocks = paths, policy, num_blocks
        self.leaf_first, self.bypass, self.on_evict = leaf_first, bypass, on_evict
        self.below, self.losses = below, losses
        longest = int(np.diff(paths.starts).max(initial=0))
        rows = min(num_blocks + (longest if bypass else 0), paths.num_nodes) + 1
        self.facts = UNKNOWN_REQUEST
        self.request = 0
        self.block_of = [0] * paths.num_nodes
        self.node_of = [-1] * rows
        self.parents = paths.parents.tolist()
        self.children: list[int] = []  # by node, the last entry counts the roots; counted from the first reading on
        self.free = list(range(rows - 1, 0, -1))
        self.aside: set[int] = set()
        self.num_resident = self.num_evicted = self.num_admitted = 0
        self.depth, self.admitted, self.last_access, self.hits = ([0] * rows for _ in range(4))
        self.tenant = [0] * rows if paths.tenants.any() else []
        self.next_use = [float("inf")] * rows if policy.needs_future else []
        self.requests = LastRequests(rows) if policy.needs_requests else None
        self.host = PolicyHost(policy, bytearray(rows))
        self.in_bulk = self.host.policy.in_bulk and not (leaf_first or bypass or on_evict is not None)
        self.host.policy.attach(self._view(rows))

    def _view(self, rows: int) -> BlockView:
        paths, node_of = self.paths, self.node_of  # paths.node_tokens are worked out for those who ask
        facts: dict[str, Any] = {} if self.requests is None else {"last_request": self.requests.column}
        return SizedView(
            depth=self.depth,
            num_tokens=ComputedColumn(lambda block: int(paths.node_tokens[node_of[block]]), rows),
            admitted=self.admitted,
            last_access=self.last_access,
            hits=self.hits,
            priority=ConstantColumn(0, rows),
            tenant=self.tenant or ConstantColumn(0, rows),
            children=ComputedColumn(self._children_of, rows),
            next_use=self.next_use or ConstantColumn(float("inf"), rows),
            key=_Names(node_of),
            parent=ComputedColumn(lambda block: self._resident_parent(node_of[block]), rows),
            partial=ComputedColumn(lambda block: bool(paths.node_partial[node_of[block]]), rows),
            capacity=self.num_blocks,
            **facts,
        )

    def _children_of(self, block: int) -> int:
        if not self.children:
            self.children = [0] * (self.paths.num_nodes + 1)
            for node, node_block in enumerate(self.block_of):
                self.children[self.parents[node]] += node_block > 0
        return self.children[self.node_of[block]]

    def _resident_parent(self, node: int) -> int:
        above = self.parents[node]
        return self.block_of[above] if above >= 0 else 0

    def run(self, walk: Iterator[list[int]]) -> CacheOnlyResult:
        block_of, last_access, hits = self.block_of, self.last_access, self.hits
        host, aside, next_use, below = self.host, self.aside, self.next_use, self.below
        bounds, times = self.paths.starts.tolist(), self.paths.times
        futures = self.paths.next_uses if self.policy.needs_future else []
        request_hits: list[int] = []
        for request, path in enumerate(walk):
            count = request + 1
            self.request, host.now = request, times[request]
            blocks: list[Any] = [block_of[node] for node in path]
            num_hits = blocks.index(0) if 0 in blocks else len(blocks)
            cached = num_hits if below is None else self._begin(below, request, path, blocks)
            request_hits.append(cached)
            if self.requests is not None:
                self.facts = self.paths.request_facts(request, cached)
            used = blocks[:num_hits]
            if any(blocks[num_hits:]):  # cut off from the root
                used += [block for block in blocks[num_hits:] if block]
            if used:
                touched = used[::-1]
                if aside:
                    candidates = [block for block in touched if block not in aside]
                    aside.difference_update(touched)
                else:
                    candidates = touched
                host.pin(candidates)
                for block in touched:
                    last_access[block] = count
                    hits[block] += 1
                host.hit(touched)
            if len(used) < len(path):
                self._admit(request, path, blocks, num_hits, len(used))
                if 0 in blocks:
                    blocks = [block for block in blocks if block]
            if below is not None:
                below.settle(path if len(blocks) == len(path) else [node for node in path if block_of[node]])
            if next_use:
                first = bounds[request]
                for node, future in zip(path, futures[first : bounds[request + 1]], strict=True):
                    next_use[block_of[node]] = future
            if self.requests is not None:
                self.requests.used(blocks, self.facts)
            host.release(host.kept(blocks[::-1], self._decline, self._has_child if self.leaf_first else None))
            if self.bypass:
                self._evict(request, self.num_resident - self.num_blocks)
            if below is not None:
                below.end()
        return summarise(self.paths, request_hits, self.num_admitted, self.num_evicted)

    def _begin(self, below: CountedBelow, request: int, path: list[int], blocks: list[Any]) -> int:
        if self.losses is None:
            return below.begin(request, path, blocks)
        lying = [below.holds(node) for node in path]
        cached = below.begin(request, path, blocks)
        self.losses.out_of_reach(request, [path[depth] for depth in range(cached, len(path)) if lying[depth]])
        return cached

    def _has_child(self, block: int) -> bool:
        return self._children_of(block) > 0

    def _decline(self, block: int) -> None:
        node = self.node_of[block]
        self._give_up(node, block)
        self.num_resident -= 1
        self.num_evicted += 1
        if self.losses is not None:
            self.losses.declined(self.request, [node])
        if self.on_evict is not None:
            self.on_evict(self.request, node)

    def _give_up(self, node: int, block: int) -> None:
        """The block's content is gone: it is free."""
        self.block_of[node] = 0
        self.free.append(block)
        if not self.children:
            return
        parent, aside = self.parents[node], self.aside
        self.children[parent] -= 1
        if aside and parent >= 0 and not self.children[parent] and self.block_of[parent] in aside:
            aside.remove(self.block_of[parent])
            self.host.release([self.block_of[parent]])

    def _admit(self, request: int, path: list[int], blocks: list[Any], num_hits: int, num_found: int) -> None:
        """Insert the missing nodes; fills in `blocks`, cut ones stay 0."""
        count = request + 1
        missing: Sequence[int] = range(num_hits, len(path))
        if num_found > num_hits:
            missing = [depth for depth in missing if not blocks[depth]]
        if not self.bypass:
            if self.losses is not None and len(missing) > self.num_blocks - num_found:
                cut = [path[depth] for depth in missing[self.num_blocks - num_found :]]
                self.losses.declined(request, cut)
            missing = missing[: self.num_blocks - num_found]
            self._evict(request, self.num_resident + len(missing) - self.num_blocks)
        block_of, node_of, free, parents, children = self.block_of, self.node_of, self.free, self.parents, self.children
        depths, admitted, last_access, hits = self.depth, self.admitted, self.last_access, self.hits
        fresh: list[Any] = free[: -len(missing) - 1 : -1]
        del free[len(free) - len(fresh) :]
        for depth, block in zip(missing, fresh, strict=True):
            node = path[depth]
            block_of[node] = blocks[depth] = block
            node_of[block] = node
            depths[block] = depth
            admitted[block] = last_access[block] = count
            hits[block] = 0
            if children:
                children[parents[node]] += 1
        if fresh:
            self.num_resident += len(fresh)
            self.num_admitted += len(fresh)
            if self.tenant:
                tenant = int(self.paths.tenants[request])
                for block in fresh:
                    self.tenant[block] = tenant
            if self.requests is not None:
                self.requests.used(fresh, self.facts)
            self.host.admit(fresh[::-1])

    def _evict(self, request: int, needed: int) -> None:
        if needed <= 0:
            return
        if self.in_bulk:
            self._evict_in_bulk(request, needed)
            return
        host, node_of, admitted = self.host, self.node_of, self.admitted
        on_evict, declined, losses = self.on_evict, 0, self.losses
        gone: list[int] = []
        evict = self._evict_leaf if self.leaf_first else host.evict
        for _ in range(needed):
            block = evict()
            node = node_of[block]
            self._give_up(node, block)
            if self.bypass and admitted[block] == request + 1:
                declined += 1
                if losses is not None:
                    losses.declined(request, [node])
                continue
            if on_evict is not None:
                on_evict(request, node)
            if losses is not None and self.below is not None and self.below.holds(node):
                losses.kept(request, [node])
            elif losses is not None:
                gone.append(node)
        if gone and losses is not None:
            losses.evicted(request, gone)
        self.num_resident -= needed
        self.num_evicted += needed - declined
        self.num_admitted -= declined

    def _evict_in_bulk(self, request: int, needed: int) -> None:
        """The same by `victims`, for policies that are faster so; nobody looks between two victims."""
        node_of, block_of, parents, children = self.node_of, self.block_of, self.parents, self.children
        victims = self.host.victims(needed)
        nodes = [*map(node_of.__getitem__, victims)]
        for node in nodes:
            block_of[node] = 0
            if children:
                children[parents[node]] -= 1
        if self.losses is not None:
            self.losses.evicted(request, nodes)
        self.free.extend(victims)
        self.num_resident -= needed
        self.num_evicted += needed

    def _evict_leaf(self) -> int:
        """Give up the policy's first choice that has no resident child; those before it are set aside."""
        while True:
            block = self.host.victim()
            if not self._has_child(block):
                self.host.drop(block)
                return block
            self.aside.add(block)
            self.host.pin([block])


def core_of(name: str) -> ReplayCore | None:
    """The installed core of this name, guarded; None for `PYTHON`, which is the framework's reference.

    Raises:
        UnknownPlugin, PluginError.
    """
    return None if name == PYTHON else GuardedReplayCore(build_component("replay_core", name, {}))


def count(
    core: ReplayCore | None,
    paths: RequestPaths,
    policy: EvictionPolicy,
    num_blocks: int,
    *,
    leaf_first: bool = False,
    progress: Callable[[int], Any] | None = None,
) -> tuple[bool, CacheOnlyResult]:
    """Whether the core counted, and the counts; what it has no version of is said in a sentence on stderr.

    Raises:
        PluginError: the core counted for another number of requests, or more hits than blocks.
    """
    if core is not None:
        counts = core.count(paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass)
        if counts is not None:
            return True, summarise(paths, counts.request_hits, counts.admitted, counts.evictions)
        sentence = f"the replay core cannot count {type(policy).__name__}: counted in Python, the same integers"
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201
    return False, replay(paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass, progress=progress)
