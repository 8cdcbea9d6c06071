"""Tiers below the pool in a cache-only replay: contents are nodes of the trace's prefix tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import Component, build_component
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestFacts
from framework_cache_only.parts import CountedBelow
from framework_cache_only.paths import RequestPaths
from framework_tiers.movement import LowerTiers
from framework_tiers.optimum import shares_of_best, tier_optima
from framework_tiers.tier import Tier
from framework_tiers.tiering import Tiering

OPTIMUM_RULES = (
    "; over tiers: one schedule that hits most in the pool and in all tiers down to each one at once, which bounds any "
    "rule's hits; a request holds its blocks in the pool"
)


def counted(
    tiers: Sequence[Mapping[str, Any]],
    tiering: Component,
    paths: RequestPaths,
    policy: EvictionPolicy,
    shared: Mapping[str, Any],
) -> CountedTiers:
    """The tiers of these entries; see `Below.count`."""
    if policy.bypass:
        raise ConfigError(
            f"{type(policy).__name__} may decline the request at hand's blocks, which no pool above other tiers can; "
            "set below=none or choose another eviction"
        )
    made = []
    for entry in tiers:
        size = entry["num_blocks"]
        made.append((size, build_component("eviction", entry["eviction"], {**shared, "num_blocks": size})))
        build_component("store", entry["store"], {})  # its options are checked; a replay moves no bytes
    return CountedTiers(paths, made, build_component("tiering", tiering, shared))


class NodeContents:
    """What is known of the nodes of a trace; `uses`, `last_use` and the like as far as it has been replayed."""

    def __init__(self, paths: RequestPaths, policies: Sequence[EvictionPolicy]) -> None:
        self._paths = paths
        columns: list[list[int]] = [column.tolist() for column in (paths.node_tokens, paths.depths, paths.parents)]
        self.num_tokens, self.depth, self.parent = (column.__getitem__ for column in columns)
        self._uses, self._last_use = [0] * paths.num_nodes, [0] * paths.num_nodes
        self.uses, self.last_use = self._uses.__getitem__, self._last_use.__getitem__
        self._tenants: dict[int, int] = {}
        self._with_tenants = bool(paths.tenants.any())
        self._next_use: dict[int, float] | None = {} if any(policy.needs_future for policy in policies) else None
        self._requests: dict[int, RequestFacts] | None = {} if any(p.needs_requests for p in policies) else None

    def used(self, request: int, path: Sequence[int], num_hits: int) -> None:
        """Request number `request`, from 0, uses these nodes."""
        paths, uses, last_use = self._paths, self._uses, self._last_use
        for node in path:
            uses[node] += 1
            last_use[node] = request + 1
        if self._with_tenants:
            tenant = int(paths.tenants[request])
            for node in path[num_hits:]:
                self._tenants[node] = tenant
        if self._next_use is not None:
            following = paths.next_uses[int(paths.starts[request]) : int(paths.starts[request + 1])]
            self._next_use.update(zip(path, following, strict=True))
        if self._requests is not None:
            self._requests.update(dict.fromkeys(path, paths.request_facts(request, num_hits)))

    def name(self, key: int) -> BlockHash:
        return BlockHash(key.to_bytes(8, "little"))

    def partial(self, key: int) -> bool:
        return bool(self._paths.node_partial[key])

    def tenant(self, key: int) -> int:
        return self._tenants.get(key, 0)

    def next_use(self, key: int) -> float:
        return float("inf") if self._next_use is None else self._next_use.get(key, float("inf"))

    def last_request(self, key: int) -> RequestFacts:
        return UNKNOWN_REQUEST if self._requests is None else self._requests.get(key, UNKNOWN_REQUEST)


class CountedTiers(CountedBelow):
    """The tiers below the pool of one cache-only replay.

    Args:
        tiers: (num_blocks, policy) from tier 1 on, the policies fresh.

    Attributes:
        pool_hits: blocks of requests' cached prefixes that lay in the pool.
        request_hits: of each request so far, for each tier from the pool down, the blocks of its cached prefix there.
    """

    def __init__(self, paths: RequestPaths, tiers: Sequence[tuple[int, EvictionPolicy]], rule: Tiering) -> None:
        self.contents = NodeContents(paths, [policy for _, policy in tiers])
        self.num_blocks = sum(size for size, _ in tiers)
        self._paths, most = paths, paths.num_nodes
        made = [Tier(number, size, policy, self.contents, most) for number, (size, policy) in enumerate(tiers, start=1)]
        self.lower = LowerTiers(made, rule, self.contents)
        self.pool_hits = 0
        self.request_hits: list[tuple[int, ...]] = []
        self._times, self._now = paths.times, 0.0
        self._new: frozenset[int] = frozenset()

    def holds(self, node: int) -> bool:
        return self.lower.where(node) > 0

    def evicted(self, request: int, node: int) -> None:
        self.lower.evicted(node, self._now)

    def begin(self, request: int, path: Sequence[int], blocks: Sequence[Any]) -> int:
        now = self._now = self._times[request]
        places = self.lower.find(path, blocks, now)
        self.contents.used(request, path, len(places))
        self.pool_hits += places.count(0)
        self.request_hits.append(tuple(np.bincount(places, minlength=len(self.lower.tiers) + 1).tolist()))
        self.lower.begin(path, places, now)
        self._new = frozenset(node for node, block in zip(path, blocks, strict=True) if not block)
        return len(places)

    def settle(self, nodes: Sequence[int]) -> None:
        self.lower.settle(nodes, self._new, self._now)

    def end(self) -> None:
        self.lower.end(self._now)

    @property
    def tier_hits(self) -> npt.NDArray[np.int32]:
        """(R, T): `request_hits` as an array, the pool being tier 0 of T."""
        return np.array(self.request_hits, dtype=np.int32).reshape(-1, len(self.lower.tiers) + 1)

    def results(self, block_bytes: int) -> dict[str, int]:
        measured = {"tier0_hit_blocks": self.pool_hits}
        for tier in self.lower.tiers:
            measured |= {f"tier{tier.number}_{key}": value for key, value in tier.facts(block_bytes).items()}
        return measured

    def columns(self) -> dict[str, Sequence[Any]]:
        return {f"tier{number}_blocks": hits.tolist() for number, hits in enumerate(self.tier_hits.T[1:], start=1)}

    def against_optima(self, num_blocks: int) -> dict[str, Any]:
        sizes, found = [num_blocks, *(tier.num_blocks for tier in self.lower.tiers)], dict[str, Any]()
        for name, pinned in (("optimum", False), ("pinned_optimum", True)):
            best = tier_optima(self._paths, sizes, pinned=pinned)
            found |= {f"tier{number}_{name}_hit_blocks": count for number, count in enumerate(best)}
        shares = shares_of_best(self.tier_hits.sum(axis=0, dtype=np.int64).tolist(), best)
        least, most = shares or (None, None)
        return {**found, "tier_value_share_min": least, "tier_value_share_max": most, "optimum_rules": OPTIMUM_RULES}
