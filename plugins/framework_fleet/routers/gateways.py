"""Routers of llm-d and SGLang's gateway."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from framework.errors import InvalidArgument
from framework_fleet.index import SentBlocks
from framework_fleet.router import ReplicaView, RoutedRequest, Router

_LLM_D_MOST_TOKENS = 256 * 16
_LLM_D_TOKENS = 31_250 * 16
_LLM_D_MOST_WAITING = 128
_SGLANG_TOKENS = 67_108_864 // 4  # characters, four a token


class LlmD(Router):
    """Greatest weighted sum of prefix match, short queue and free blocks, and of two scores that are off by default.

    Match is matched / prompt; queue (max - waiting) / (max - min) over the replicas, 1 where all are equal; KV 1 -
    usage; load .5 * (1 - min(waiting, 128) / 128); cold, for a prompt that nobody has, 1 - rank / (replicas - 1) where
    rank 0 had such a one longest ago, else .5; load as reported. Source: llm-d and the Gateway API Inference Extension,
    pkg/epp, defaults.go. Its index is approximate there: blocks of 16 tokens, at most 256 of them matched, 31,250 a
    pod, least recently used; here blocks are the run's, and the same numbers of tokens. Its filter of affinity, which
    needs a forecast of the time to the first token, has no counterpart here.

    Args:
        prefix_weight, queue_weight, kv_weight: of the three (3, 2, 2; a published precise configuration has 2, 1, 1).
        load_weight, cold_weight: of its load-aware-scorer and no-hit-lru-scorer (0, 0).
        precise: take the run's index in place of its own.
        shuffle: of equal scores one by chance; False: the first.
        seed: of the run.
    """

    needs_matches = True

    def __init__(
        self,
        prefix_weight: float = 3.0,
        queue_weight: float = 2.0,
        kv_weight: float = 2.0,
        load_weight: float = 0.0,
        cold_weight: float = 0.0,
        precise: bool = False,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.prefix_weight, self.queue_weight, self.kv_weight = prefix_weight, queue_weight, kv_weight
        self.load_weight, self.cold_weight = load_weight, cold_weight
        self.precise, self.shuffle = precise, shuffle
        self._cold: list[int] = []  # replicas by their last prompt that nobody had, the latest last
        self._random = Random(f"framework_fleet.llm_d:{seed}")
        self._index: SentBlocks | None = None

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        if self._index is None:
            self._index = SentBlocks(num_blocks=max(1, _LLM_D_TOKENS // request.block_size))
        waiting = [replica.load.waiting for replica in replicas]
        low, high = min(waiting), max(waiting)
        matches = [self._matched(request, replica, self._index) / request.num_tokens for replica in replicas]
        # Of prompts that nobody has; where somebody has one, all are .5 and decide nothing.
        order = sorted(replicas, key=lambda one: self._cold.index(one.index) if one.index in self._cold else -1)
        scores = []
        for replica, queue, matched in zip(replicas, waiting, matches, strict=True):
            cold = 0.5 if any(matches) else 1 - order.index(replica) / max(1, len(order) - 1)
            short = (high - queue) / (high - low) if high > low else 1.0
            scores.append(
                self.prefix_weight * matched + self.queue_weight * short + self.kv_weight * (1 - replica.usage)
                + self.load_weight * 0.5 * (1 - min(queue, _LLM_D_MOST_WAITING) / _LLM_D_MOST_WAITING)
                + self.cold_weight * cold
            )  # fmt: skip
        best = [replica for replica, score in zip(replicas, scores, strict=True) if score == max(scores)]
        chosen = best[int(self._random.random() * len(best))] if self.shuffle else best[0]
        self._index.sent(chosen.index, request.hashes, request.now_s)
        if not any(matches):
            self._cold = [index for index in self._cold if index != chosen.index] + [chosen.index]
        return chosen

    def _matched(self, request: RoutedRequest, replica: ReplicaView, index: SentBlocks) -> int:
        if self.precise:
            return replica.matched_tokens
        most = max(1, _LLM_D_MOST_TOKENS // request.block_size)
        return request.block_size * index.matched(replica.index, request.hashes[:most], request.now_s)

    def left(self, index: int) -> None:
        if self._index is not None:
            self._index.drop(index)


class SglangCacheAware(Router):
    """Where load is balanced, the replica that was sent most of the prompt, if that is enough; else least load.

    Unbalanced: the most requests under way exceed the fewest by more than `balance_abs` and by a factor of more than
    `balance_rel`. Source: sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs (053b63f). There the tree
    is of characters of text, and of several workers that have the longest match it takes any; here it is of the run's
    blocks, and the first.

    Args:
        cache_threshold: share of the prompt that must match for it to count (.3).
        balance_abs, balance_rel: of what is unbalanced (64, 1.5).
        tree_tokens: kept for each replica, least recently sent forgotten first (67,108,864 characters, four a token).
    """

    def __init__(
        self,
        cache_threshold: float = 0.3,
        balance_abs: int = 64,
        balance_rel: float = 1.5,
        tree_tokens: int = _SGLANG_TOKENS,
    ) -> None:
        if not 0 <= cache_threshold <= 1 or tree_tokens < 1:
            raise InvalidArgument(
                f"cache_threshold must be 0 to 1 and tree_tokens at least 1, found {cache_threshold} and {tree_tokens}"
            )
        self.cache_threshold, self.balance_abs, self.balance_rel = cache_threshold, balance_abs, balance_rel
        self.tree_tokens = tree_tokens
        self._tree: SentBlocks | None = None
        self.num_unbalanced = self.num_matched = 0

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        if self._tree is None:
            self._tree = SentBlocks(num_blocks=max(1, self.tree_tokens // request.block_size))
        tree, low = self._tree, min(replica.active for replica in replicas)
        high = max(replica.active for replica in replicas)
        chosen = next(replica for replica in replicas if replica.active == low)
        if high - low > self.balance_abs and high > low * self.balance_rel:
            self.num_unbalanced += 1
        else:
            depths = [tree.matched(replica.index, request.hashes, request.now_s) for replica in replicas]
            if max(depths) * request.block_size / request.num_tokens > self.cache_threshold:
                self.num_matched += 1
                chosen = replicas[depths.index(max(depths))]
        tree.sent(chosen.index, request.hashes, request.now_s)
        return chosen

    def left(self, index: int) -> None:
        if self._tree is not None:
            self._tree.drop(index)

    def facts(self) -> dict[str, int]:
        return {"by_match": self.num_matched, "unbalanced": self.num_unbalanced}
