"""The reference model of cache-only replay: blocks that an eviction policy hits when each request is one atomic access.

The mode of published hit-rate tables: no time passes inside a request, no output is cached, only the request at
hand is pinned. The policy is an ordinary `EvictionPolicy`, driven by the same callbacks as in an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from framework.errors import InvalidArgument, PluginError
from framework.guard.boundary import shown
from framework.guard.policy import around_policy, boundary_of, names_in_bulk, overrides_keep
from framework.interfaces.eviction import BlockView, ConstantColumn, EvictionPolicy
from framework.misses.account import DECLINED, TIER
from framework.paged.last_requests import LastRequests
from framework.replay.misses import LossLog
from framework.replay.paths import RequestPaths
from framework.replay.result import CacheOnlyResult as CacheOnlyResult
from framework.replay.result import replay_infinite as replay_infinite
from framework.replay.result import summarise as summarise
from framework.replay.tiers import ReplayTiers
from framework.types import UNKNOWN_REQUEST, BlockId, PolicyTime


def replay(
    paths: RequestPaths,
    policy: EvictionPolicy,
    num_blocks: int,
    *,
    leaf_first: bool = False,
    bypass: bool = False,
    on_evict: Callable[[int, int], Any] | None = None,
    below: ReplayTiers | None = None,
    losses: LossLog | None = None,
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
        losses: notes what is evicted and declined, for replay.misses.explain.

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
    with around_policy(policy):
        return _Replay(paths, policy, num_blocks, leaf_first, bypass, on_evict, below, losses).run()


@dataclass(frozen=True, slots=True)
class _View(BlockView):
    """A view whose columns may have spare rows beyond the capacity."""

    capacity: int = 0

    @property
    def num_blocks(self) -> int:
        return self.capacity


class _ByNode(Sequence[Any]):
    """A column kept by node instead of by block."""

    def __init__(self, node_of: list[int], fact: Callable[[int], Any]) -> None:
        self._node_of, self._fact = node_of, fact

    def __getitem__(self, block: Any) -> Any:
        return self._fact(self._node_of[block])

    def __len__(self) -> int:
        return len(self._node_of)


class _Names(_ByNode):
    """Nodes' names: what a policy asks for most often, without a further call."""

    def __init__(self, node_of: list[int]) -> None:
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
        below: ReplayTiers | None = None,
        losses: LossLog | None = None,
    ) -> None:
        self.paths, self.policy, self.num_blocks = paths, policy, num_blocks
        self.leaf_first, self.bypass, self.on_evict = leaf_first, bypass, on_evict
        self.below, self.losses = below, losses
        self.in_bulk = names_in_bulk(policy) and not (leaf_first or bypass or on_evict is not None)
        longest = int(np.diff(paths.starts).max(initial=0))
        rows = min(num_blocks + (longest if bypass else 0), paths.num_nodes) + 1
        self.facts = UNKNOWN_REQUEST
        self.request, self.now = 0, 0.0
        self.block_of = [0] * paths.num_nodes
        self.node_of = [-1] * rows
        self.parents = paths.parents.tolist()
        self.children = [0] * (paths.num_nodes + 1)  # the last entry counts the roots
        self.free = list(range(rows - 1, 0, -1))
        self.aside: set[int] = set()
        self.num_resident = self.num_evicted = self.num_admitted = 0
        self.depth, self.admitted, self.last_access, self.hits = ([0] * rows for _ in range(4))
        self.tenant = [0] * rows if paths.tenants.any() else []
        self.next_use = [float("inf")] * rows if policy.needs_future else []
        self.may_decline = overrides_keep(policy)
        self.requests = LastRequests(rows) if policy.needs_requests else None
        policy.attach(self._view(rows))

    def _view(self, rows: int) -> BlockView:
        paths = self.paths  # its node_tokens are worked out for those who ask
        facts: dict[str, Any] = {} if self.requests is None else {"last_request": self.requests.column}
        return _View(
            depth=self.depth,
            num_tokens=_ByNode(self.node_of, lambda node: int(paths.node_tokens[node])),
            admitted=self.admitted,
            last_access=self.last_access,
            hits=self.hits,
            priority=ConstantColumn(0, rows),
            tenant=self.tenant or ConstantColumn(0, rows),
            children=_ByNode(self.node_of, self.children.__getitem__),
            next_use=self.next_use or ConstantColumn(float("inf"), rows),
            key=_Names(self.node_of),
            parent=_ByNode(self.node_of, self._resident_parent),
            partial=_ByNode(self.node_of, lambda node: bool(paths.node_partial[node])),
            capacity=self.num_blocks,
            **facts,
        )

    def _resident_parent(self, node: int) -> int:
        above = self.parents[node]
        return self.block_of[above] if above >= 0 else 0

    def run(self) -> CacheOnlyResult:
        block_of, last_access, hits = self.block_of, self.last_access, self.hits
        pin, hit, release = self.policy.pin, self.policy.hit, self.policy.release
        aside, next_use, below = self.aside, self.next_use, self.below
        bounds, futures, times = self.paths.starts.tolist(), self._futures(), self.paths.times
        request_hits: list[int] = []
        for request, path in enumerate(self.paths.walk()):
            count, now = request + 1, times[request]
            self.request, self.now = request, now
            blocks: list[Any] = [block_of[node] for node in path]
            num_hits = blocks.index(0) if 0 in blocks else len(blocks)
            cached = num_hits if below is None else self._begin(below, request, path, blocks)
            request_hits.append(cached)
            if self.requests is not None:
                self.facts = self.paths.request_facts(request, cached)
            found = [block for block in blocks if block] if num_hits < len(blocks) else blocks
            if found:
                touched = found[::-1]
                if aside:
                    candidates = [block for block in touched if block not in aside]
                    aside.difference_update(touched)
                else:
                    candidates = touched
                if candidates:
                    pin(candidates, now)
                for block in touched:
                    last_access[block] = count
                    hits[block] += 1
                hit(touched, now)
            if len(found) < len(path):
                self._admit(request, path, blocks, num_hits, len(found))
                blocks = [block for block in blocks if block]
            if below is not None:
                below.settle(path if len(blocks) == len(path) else [node for node in path if block_of[node]])
            if next_use:
                first = bounds[request]
                for node, future in zip(path, futures[first : bounds[request + 1]], strict=True):
                    next_use[block_of[node]] = future
            if self.requests is not None:
                self.requests.used(blocks, self.facts)
            if self.may_decline:
                blocks = self._kept(request, blocks)
            if blocks:
                release(blocks[::-1], now)
            if self.bypass:
                self._evict(request, self.num_resident - self.num_blocks)
            if below is not None:
                below.end()
        return summarise(self.paths, request_hits, self.num_admitted, self.num_evicted)

    def _begin(self, below: ReplayTiers, request: int, path: list[int], blocks: list[Any]) -> int:
        """See ReplayTiers.begin."""
        if self.losses is None:
            return below.begin(request, path, blocks)
        lying = [below.lower.where(node) > 0 for node in path]
        cached = below.begin(request, path, blocks)
        self.losses.out_of_reach.append((request, [path[at] for at in range(cached, len(path)) if lying[at]]))
        return cached

    def _kept(self, request: int, blocks: list[Any]) -> list[Any]:
        """The request's blocks, shallowest first, without those that the policy declines; these are free."""
        kept: list[Any] = []
        for block in reversed(blocks):
            node = self.node_of[block]
            held = self.leaf_first and self.children[node]
            answer = True if held else self.policy.keep(block, self.now)
            if type(answer) is not bool:
                raise boundary_of(self.policy).fault("keep", f"must return a bool, returned {shown(answer)}")
            if answer:
                kept.append(block)
                continue
            self.policy.evicted(block, self.now)
            self._give_up(node, block)
            self.num_resident -= 1
            self.num_evicted += 1
            if self.losses is not None:
                self.losses.add(request, [node], DECLINED)
            if self.on_evict is not None:
                self.on_evict(request, node)
        return kept[::-1]

    def _give_up(self, node: int, block: BlockId) -> None:
        """The block's content is gone: it is free."""
        self.block_of[node] = 0
        self.node_of[block] = -1
        self.free.append(block)
        parent = self.parents[node]
        self.children[parent] -= 1
        if self.aside and parent >= 0 and not self.children[parent]:
            self._release_parent(self.block_of[parent])

    def _futures(self) -> list[float]:
        if not self.policy.needs_future:
            return []
        following = self.paths.next_requests.astype(np.float64) + 1
        following[following > self.paths.num_requests] = np.inf
        return list(following.tolist())

    def _admit(self, request: int, path: list[int], blocks: list[Any], num_hits: int, num_found: int) -> None:
        """Insert the missing nodes; fills in `blocks`, cut ones stay 0."""
        count = request + 1
        missing: Sequence[int] = range(num_hits, len(path))
        if num_found > num_hits:
            missing = [depth for depth in missing if not blocks[depth]]
        if not self.bypass:
            if self.losses is not None and len(missing) > self.num_blocks - num_found:
                cut = [path[depth] for depth in missing[self.num_blocks - num_found :]]
                self.losses.add(request, cut, DECLINED)
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
            self.policy.admit(fresh[::-1], self.now)

    def _evict(self, request: int, needed: int) -> None:
        if needed <= 0:
            return
        if self.in_bulk:
            self._evict_in_bulk(request, needed)
            return
        count, now, node_of, block_of, free = request + 1, self.now, self.node_of, self.block_of, self.free
        parents, children, aside = self.parents, self.children, self.aside
        num_rows, on_evict, declined, losses = len(node_of), self.on_evict, 0, self.losses
        gone: list[int] = []
        choose = self._leaf_victim if self.leaf_first else self.policy.victim
        evicted, last_access, pinned = self.policy.evicted, self.last_access, -1 if self.bypass else count
        for _ in range(needed):
            block = choose(now)
            if type(block) is not int or not 0 < block < num_rows or last_access[block] == pinned:
                raise self._not_a_candidate(block, request)
            node = node_of[block]
            if node < 0:
                raise self._not_a_candidate(block, request)
            evicted(block, now)
            block_of[node] = 0
            node_of[block] = -1
            free.append(block)
            parent = parents[node]
            children[parent] -= 1
            if aside and parent >= 0 and not children[parent]:
                self._release_parent(block_of[parent])
            if pinned < 0 and self.admitted[block] == count:
                declined += 1
                if losses is not None:
                    losses.add(request, [node], DECLINED)
                continue
            if on_evict is not None:
                on_evict(request, node)
            if losses is not None and self.below is not None and self.below.lower.where(node):
                losses.add(request, [node], TIER)
            elif losses is not None:
                gone.append(node)
        if gone and losses is not None:
            losses.add(request, gone)
        self.num_resident -= needed
        self.num_evicted += needed - declined
        self.num_admitted -= declined
        return

    def _evict_in_bulk(self, request: int, needed: int) -> None:
        """The same by `victims`, for policies that are faster so; nobody looks between two victims."""
        count, node_of, block_of, num_rows = request + 1, self.node_of, self.block_of, len(self.node_of)
        parents, children, last_access = self.parents, self.children, self.last_access
        victims = self.policy.victims(needed, self.now)
        try:
            nodes = [*map(node_of.__getitem__, victims)]
        except (TypeError, IndexError):
            nodes = [node_of[block] if type(block) is int and block < num_rows else -1 for block in victims]
        for block, node in zip(victims, nodes, strict=True):
            if type(block) is not int or not 0 < block < num_rows or last_access[block] == count:
                raise self._not_a_candidate(block, request)
            if node < 0 or not block_of[node]:
                raise self._not_a_candidate(block, request)
            block_of[node] = 0
            node_of[block] = -1
            children[parents[node]] -= 1
        if len(victims) != needed:
            raise boundary_of(self.policy).fault("victims", f"must name {needed} blocks, named {len(victims)}")
        if self.losses is not None:
            self.losses.add(request, nodes)
        self.free.extend(victims)
        self.num_resident -= needed
        self.num_evicted += needed

    def _leaf_victim(self, now: PolicyTime) -> BlockId:
        """The policy's first choice that has no resident child; those before it are set aside."""
        while True:
            block = self.policy.victim(now)
            if type(block) is not int or not 0 < block < len(self.node_of) or block in self.aside:
                raise self._not_a_candidate(block, self.request)
            if self.node_of[block] < 0 or not self.children[self.node_of[block]]:
                return block
            self.aside.add(block)
            self.policy.pin([block], now)

    def _release_parent(self, block: int) -> None:
        if block in self.aside:
            self.aside.remove(block)
            self.policy.release([BlockId(block)], self.now)

    def _not_a_candidate(self, block: Any, request: int) -> PluginError:
        rule = f"must name a candidate at request {request}, named {shown(block)}, which is free, in use or unknown"
        return boundary_of(self.policy).fault("victim", rule)
