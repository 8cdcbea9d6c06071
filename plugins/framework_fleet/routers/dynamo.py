"""Dynamo's router, and the product that its policy `lmetric` and SGLang's router of that name take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

from framework.errors import InvalidArgument
from framework_fleet.router import ReplicaView, RoutedRequest, Router, ScoredRouter


class DynamoKv(Router):
    """Least cost, in blocks, of prefill that is left and blocks that are decoded.

    cost = scale * max(0, (active prefill tokens + prompt) / block - credit) + potential decode blocks + active_weight *
    active requests, where credit = credit * decay * blocks in the pool + host_credit * those in the first tier below +
    disk_credit * those in the second, and decay = 1 / (1 + excess_decay * (active prefill beyond the least loaded
    replica's) / the request's blocks). With a temperature the choice is drawn, by exp(-cost / ((max - min) *
    temperature)). Source: ai-dynamo/dynamo, lib/kv-router, scheduling/selector.rs (01690d4) and config.rs (0243c51);
    decode blocks are there of prompts and what was generated, here the distinct full blocks of prompts under way. A
    shared cache beyond the replicas, its weight m, has no counterpart here.

    Args:
        policy: `kv`, the cost; `lmetric`, the least product of adjusted prefill and decode blocks + 1; `decode`, for
            mode.decode_router: the least max(0, decode blocks - credit) + active_weight * active requests.
        credit, host_credit, disk_credit: of a block that is matched (1, .75, .25).
        excess_decay: d of the decay (0).
        scale: of prefill (1).
        active_weight: of a request under way (0).
        temperature: of the draw; 0: the least (0).
        seed: of the run.
    """

    needs_matches = True

    def __init__(
        self,
        policy: Literal["kv", "lmetric", "decode"] = "kv",
        credit: float = 1.0,
        host_credit: float = 0.75,
        disk_credit: float = 0.25,
        excess_decay: float = 0.0,
        scale: float = 1.0,
        active_weight: float = 0.0,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        if temperature < 0 or excess_decay < 0:
            raise InvalidArgument(
                f"temperature and excess_decay must be at least 0, found {temperature} and {excess_decay}"
            )
        self.policy, self.credit, self.host_credit, self.disk_credit = policy, credit, host_credit, disk_credit
        self.excess_decay, self.scale, self.active_weight = excess_decay, scale, active_weight
        self.temperature = temperature
        self._random = Random(f"framework_fleet.dynamo_kv:{seed}")

    def cost(self, request: RoutedRequest, replica: ReplicaView, least_prefill_tokens: int) -> float:
        """The cost of sending `request` to `replica`; smallest first."""
        size = request.block_size
        pool, host, disk = (*(tokens / size for tokens in replica.matched_by_tier), 0.0, 0.0)[:3]
        excess = (replica.active_prefill_tokens - least_prefill_tokens) / size
        decay = 1 / (1 + self.excess_decay * excess / max(1.0, request.num_tokens / size))
        credit = self.credit * decay * pool + self.host_credit * host + self.disk_credit * disk
        prefill = self.scale * max(0.0, (replica.active_prefill_tokens + request.num_tokens) / size - credit)
        if self.policy == "decode":
            return max(0.0, replica.potential_blocks - credit) + self.active_weight * replica.active
        if self.policy == "lmetric":
            return prefill * (replica.potential_blocks + 1)
        return prefill + replica.potential_blocks + self.active_weight * replica.active

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        least = min(replica.active_prefill_tokens for replica in replicas)
        costs = [self.cost(request, replica, least) for replica in replicas]
        low, high = min(costs), max(costs)
        if not self.temperature or low == high:
            return replicas[costs.index(low)]
        weights = [math.exp(-(cost - low) / ((high - low) * self.temperature)) for cost in costs]
        draw = self._random.random() * sum(weights)
        for replica, weight in zip(replicas, weights, strict=True):
            draw -= weight
            if draw < 0:
                return replica
        return replicas[-1]


class LMetric(ScoredRouter):
    """Least product of the prefill work that there would be and the requests under way + 1; no constant to tune.

    Ties: fewer requests, less work, the first. Source: arXiv 2603.15202, as sgl-project/sglang's lmetric.rs (acaa759)
    has it.
    """

    needs_matches = True

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        def key(replica: ReplicaView) -> tuple[float, int, int]:
            return self.score(request, replica), replica.active, self.work(request, replica)

        return min(replicas, key=key)

    def work(self, request: RoutedRequest, replica: ReplicaView) -> int:
        """Prompt tokens that `replica` would have to compute, those of `request` among them."""
        return replica.active_prefill_tokens + request.num_tokens - replica.matched_tokens

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        return self.work(request, replica) * (replica.active + 1)
