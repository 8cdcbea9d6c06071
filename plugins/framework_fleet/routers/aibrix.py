"""Routers of AIBrix: its prefix cache, and its port of Preble."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Literal

from framework.types import BlockHash
from framework_fleet.index import SentBlocks
from framework_fleet.router import ReplicaView, RoutedRequest, Router


class AibrixPrefixCache(Router):
    """The best match among replicas that are not overloaded; fewest requests where there is none.

    Where the most requests under way exceed the fewest by more than `imbalance`, only replicas with the fewest are
    looked at. Of those with a match, in order of match, then of requests, the first with at most mean + `deviations` *
    standard deviation requests is taken. Source: vllm-project/aibrix, pkg/plugins/gateway/algorithms/prefix_cache.go;
    its blocks are 4 characters, here the run's.

    Args:
        imbalance: see above (8).
        deviations: standard deviations above the mean that are no overload (1).
        table_blocks: kept for each replica (200,000).
        ttl_s: seconds after which a block that was not sent again is forgotten (20 minutes).
    """

    def __init__(
        self, imbalance: int = 8, deviations: float = 1.0, table_blocks: int = 200_000, ttl_s: float = 1200.0
    ) -> None:
        self.imbalance, self.deviations = imbalance, deviations
        self._table = SentBlocks(num_blocks=table_blocks, ttl_s=ttl_s)

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        counts = [replica.active for replica in replicas]
        low, high = min(counts), max(counts)
        allowed = [one for one in replicas if high - low <= self.imbalance or one.active == low]
        most = fmean(counts) + self.deviations * pstdev(counts)
        matches = [(self._table.matched(one.index, request.hashes, request.now_s), one) for one in allowed]
        matched = sorted((pair for pair in matches if pair[0]), key=lambda pair: (-pair[0], pair[1].active))
        chosen = next((one for _, one in matched if one.active <= most), None)
        if chosen is None:
            chosen = min(replicas, key=lambda one: one.active)
        self._table.sent(chosen.index, request.hashes, request.now_s)
        return chosen

    def left(self, index: int) -> None:
        self._table.drop(index)


@dataclass(slots=True)
class _Node:
    """A prompt that was sent lately: tokens beyond what was known when it came first, all of them, and who has it."""

    new_tokens: int
    tokens: int
    count: int = 0
    replicas: set[int] = field(default_factory=set)


class Preble(Router):
    """With more than half of the prompt known, least load among those that have most of it; else least cost.

    Load is the prompts of the last minutes that a replica has; cost, over the same: miss share * count * prefill time /
    replicas that have it + decode tokens * seconds a token. Source: Preble (arXiv 2407.00023) as
    vllm-project/aibrix has it, prefix_cache_preble.go: prefill times of Mistral-7B on two devices, whose measurements
    they are, and a decode length and a time a token that it never learns. Nodes are of a radix tree of tokens there,
    here one for each prompt by its full blocks.

    Args:
        threshold: share of the prompt that must be known (.5).
        window_s: seconds for which a prompt counts (3 minutes).
        decode_tokens, token_s: of each prompt (45, .15).
        device: V100 or A6000.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        window_s: float = 180.0,
        decode_tokens: int = 45,
        token_s: float = 0.15,
        device: Literal["V100", "A6000"] = "V100",
    ) -> None:
        self.threshold, self.window_s, self.decode_s, self.device = threshold, window_s, decode_tokens * token_s, device
        self._tree = SentBlocks()
        self._nodes: dict[BlockHash, _Node] = {}
        self._recent: deque[tuple[float, BlockHash]] = deque()

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        while self._recent and self._recent[0][0] <= request.now_s - self.window_s:
            self._forget(self._recent.popleft()[1])
        depths = [self._tree.matched(one.index, request.hashes, request.now_s) for one in replicas]
        best = max(depths)
        if best * request.block_size / request.num_tokens > self.threshold:
            having = [one for one, depth in zip(replicas, depths, strict=True) if depth == best]
            chosen = min(having, key=lambda one: self.load(one.index))
        else:
            chosen = min(replicas, key=lambda one: self.cost(one.index))
        self._note(request, chosen.index, best)
        return chosen

    def load(self, index: int) -> int:
        """Prompts of the last minutes that this replica has."""
        return sum(node.count for node in self._nodes.values() if index in node.replicas)

    def cost(self, index: int) -> float:
        """Seconds that the prompts of the last minutes cost this replica."""
        return sum(
            node.new_tokens / node.tokens * node.count * self.prefill_s(node.new_tokens, node.tokens)
            / len(node.replicas) + self.decode_s
            for node in self._nodes.values() if index in node.replicas
        )  # fmt: skip

    def prefill_s(self, new_tokens: int, tokens: int) -> float:
        """Seconds to compute `new_tokens` of a prompt of `tokens`, as the port has it."""
        n, slow = new_tokens, self.device == "V100"
        if n >= 384:
            linear = 0.27106428 * n + 10.52444263 if slow else 0.10842571 * n + 4.209777054806409
        elif n >= 192:
            linear = -295 + 3.125 * n - 6.4e-3 * n**2 if slow else -118 + 1.25 * n - 2.56e-3 * n**2
        else:
            linear = 55.0 if slow else 22.0
        if tokens <= 1024:
            attention = 0.80 if slow else 0.32
        else:
            attention = 4.65e-4 * tokens + 0.398 if slow else 1.86e-4 * tokens + 0.159
            if n <= 1024:
                attention /= 2
        quadratic = 0.0
        if n >= 4096:
            quadratic = -18.425 + 9.65e-3 * n + 5.4e-6 * n**2 if slow else -7.37 + 3.86e-3 * n + 2.16e-6 * n**2
        return (linear + attention + quadratic) / 1000 / 0.9

    def _note(self, request: RoutedRequest, index: int, known: int) -> None:
        self._tree.sent(index, request.hashes, request.now_s)
        if not request.hashes:
            return
        end = request.hashes[-1]
        if end not in self._nodes:
            new = max(1, request.num_tokens - known * request.block_size)
            self._nodes[end] = _Node(new_tokens=new, tokens=request.num_tokens)
        self._nodes[end].count += 1
        self._recent.append((request.now_s, end))
        for key in request.hashes:
            if key in self._nodes:
                self._nodes[key].replicas.add(index)

    def _forget(self, key: BlockHash) -> None:
        node = self._nodes[key]
        node.count -= 1
        if not node.count:
            del self._nodes[key]

    def left(self, index: int) -> None:
        self._tree.drop(index)
        for node in self._nodes.values():
            node.replicas.discard(index)
