"""Routers of vLLM's production stack."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean

from framework.errors import InvalidArgument
from framework_fleet.index import SentBlocks
from framework_fleet.router import ReplicaView, RoutedRequest, Router, ScoredRouter
from framework_fleet.routers.plain import SessionAffinity


class PrefixAware(Router):
    """A random one of those that were sent most of the prompt; load is not looked at.

    Source: vllm-project/production-stack, routing_logic.py, prefixaware, whose trie is of 128 characters a step and
    forgets nothing; here it is of the run's blocks.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(f"framework_fleet.prefixaware:{seed}")
        self._trie = SentBlocks()

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        depths = [self._trie.matched(one.index, request.hashes, request.now_s) for one in replicas]
        having = [one for one, depth in zip(replicas, depths, strict=True) if depth == max(depths)]
        chosen = having[int(self._random.random() * len(having))]
        self._trie.sent(chosen.index, request.hashes, request.now_s)
        return chosen

    def left(self, index: int) -> None:
        self._trie.drop(index)


class KvAware(Router):
    """The replica that holds most of the prompt, if all but `threshold` tokens of it; else by session, or least load.

    Source: vllm-project/production-stack, routing_logic.py, kvaware: what is cached is asked of LMCache's controller,
    and without enough of it a session keeps its replica, and a request without one goes where fewest requests are.

    Args:
        threshold: tokens that may be missing (2,000).
    """

    needs_matches = True

    def __init__(self, threshold: int = 2000) -> None:
        if threshold < 0:
            raise InvalidArgument(f"threshold must be at least 0, found {threshold}")
        self.threshold = threshold
        self._otherwise = SessionAffinity()

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        best = max(replicas, key=lambda one: one.matched_tokens)
        if best.matched_tokens and best.matched_tokens >= request.num_tokens - self.threshold:
            return best
        return self._otherwise.route(request, replicas)


class LoadAware(ScoredRouter):
    """Greatest share of the prompt that is matched, less how far the load is above the mean.

    matched / prompt - beta * (load - mean) / max(1, mean), load being requests under way. Source:
    vllm-project/production-stack pull request 1035.

    Args:
        beta: weight of the load (1).
    """

    needs_matches = True

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta
        self._mean = 0.0

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        self._mean = fmean(one.active for one in replicas)
        return super().route(request, replicas)

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        load = (replica.active - self._mean) / max(1.0, self._mean)
        return self.beta * load - replica.matched_tokens / request.num_tokens
