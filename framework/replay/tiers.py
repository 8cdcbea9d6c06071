"""Tiers below the pool in a cache-only replay: contents are nodes of the trace's prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.tiering import Tiering
from framework.replay.paths import RequestPaths
from framework.tiers.movement import LowerTiers
from framework.tiers.tier import Tier
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestFacts


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One tier below the pool: its capacity in blocks and a fresh policy."""

    num_blocks: int
    policy: EvictionPolicy


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

    def own_tokens(self, path: Sequence[int]) -> list[int]:
        """Tokens of each block alone."""
        ends = [0, *map(self.num_tokens, path)]
        return [end - start for start, end in pairwise(ends)]

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


class ReplayTiers:
    """The tiers below the pool of one cache-only replay.

    Attributes:
        pool_hits, pool_hit_tokens: blocks, and their tokens, of requests' cached prefixes that lay in the pool.
        request_hits: of each request so far, for each tier from the pool down, the blocks of its cached prefix there.
    """

    def __init__(self, paths: RequestPaths, specs: Sequence[TierSpec], rule: Tiering) -> None:
        self.contents = NodeContents(paths, [spec.policy for spec in specs])
        most = paths.num_nodes
        tiers = [
            Tier(number, spec.num_blocks, spec.policy, self.contents, most)
            for number, spec in enumerate(specs, start=1)
        ]
        self.lower = LowerTiers(tiers, rule, self.contents)
        self.pool_hits = self.pool_hit_tokens = 0
        self.request_hits: list[tuple[int, ...]] = []
        self._times, self._now = paths.times, 0.0
        self._new: frozenset[int] = frozenset()

    def evicted(self, request: int, node: int) -> None:
        self.lower.evicted(node, self._now)

    def begin(self, request: int, path: Sequence[int], blocks: Sequence[Any]) -> int:
        """The request's hit blocks in all tiers; `blocks` says which the pool holds."""
        now = self._now = self._times[request]
        places = self.lower.find(path, blocks, now)
        self.contents.used(request, path, len(places))
        own_tokens = self.contents.own_tokens(path[: len(places)])
        self.pool_hits += places.count(0)
        self.pool_hit_tokens += sum(tokens for place, tokens in zip(places, own_tokens, strict=True) if not place)
        self.request_hits.append(tuple(np.bincount(places, minlength=len(self.lower.tiers) + 1).tolist()))
        self.lower.begin(path, places, own_tokens, now)
        self._new = frozenset(node for node, block in zip(path, blocks, strict=True) if not block)
        return len(places)

    def settle(self, nodes: Sequence[int]) -> None:
        """The nodes of the request that the pool holds now, in prompt order."""
        self.lower.settle(nodes, self._new, self._now)

    def end(self) -> None:
        self.lower.end(self._now)

    @property
    def tier_hits(self) -> npt.NDArray[np.int32]:
        """(R, T): `request_hits` as an array, the pool being tier 0 of T."""
        return np.array(self.request_hits, dtype=np.int32).reshape(-1, len(self.lower.tiers) + 1)

    def results(self, block_bytes: int) -> dict[str, int]:
        """What `result.json` says of the tiers, `block_bytes` each block."""
        measured = {"tier0_hit_blocks": self.pool_hits, "tier0_hit_tokens": self.pool_hit_tokens}
        for tier in self.lower.tiers:
            measured |= {f"tier{tier.number}_{key}": value for key, value in tier.facts(block_bytes).items()}
        return measured
