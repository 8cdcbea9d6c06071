"""Orders by who asks, and by when they want an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from framework.errors import InvalidArgument
from framework.interfaces.scheduling import (
    QueueView,
    RunningRequest,
    Scheduling,
    ScoredScheduling,
    WaitingRequest,
)


class Fair(Scheduling):
    """The tenant that was served least is next, first come, first served within a tenant: virtual token counters.

    A tenant's counter grows by its prompts' tokens as they are admitted and by its answers' as they are generated. A
    tenant that had nothing waiting begins again with no less than the least counter of those who wait, so that idle
    time is not saved up. Source: Sheng et al., Fairness in Serving Large Language Models (arXiv 2401.00588), algorithm
    2, with the weights of its evaluation.

    Args:
        input_weight: of a prompt token (1).
        output_weight: of a generated token (2).
        max_passed: most requests that may pass another; None: no bound. Counters bound how far tenants may drift apart,
            not how many requests pass one.
    """

    def __init__(self, input_weight: float = 1.0, output_weight: float = 2.0, max_passed: int | None = None) -> None:
        if not (0 <= input_weight < math.inf and 0 <= output_weight < math.inf):
            raise InvalidArgument(f"weights must be finite and at least 0, found {input_weight} and {output_weight}")
        self.input_weight, self.output_weight, self.max_passed = input_weight, output_weight, max_passed
        self._served: dict[str, float] = {}
        self._queued: set[str] = set()
        self._last = ""

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        counters = dict(self._served)
        for one in view.running:
            tenant = one.info.tenant
            counters[tenant] = counters.get(tenant, 0.0) + self.output_weight * one.num_generated
        here = dict.fromkeys(request.info.tenant for request in waiting)
        stayed = [counters.get(tenant, 0.0) for tenant in here if tenant in self._queued]
        floor = min(stayed) if stayed else counters.get(self._last, 0.0)
        for tenant in here:
            if tenant not in self._queued:
                lift = max(0.0, floor - counters.get(tenant, 0.0))
                self._served[tenant] = self._served.get(tenant, 0.0) + lift
                counters[tenant] = counters.get(tenant, 0.0) + lift
        self._queued = set(here)
        queues: dict[str, list[WaitingRequest]] = {tenant: [] for tenant in here}
        for request in reversed(waiting):
            queues[request.info.tenant].append(request)
        chosen = []
        while queues:  # as if each were admitted in turn
            tenant = min(queues, key=lambda one: counters.get(one, 0.0))
            request = queues[tenant].pop()
            counters[tenant] = counters.get(tenant, 0.0) + self.input_weight * request.num_tokens
            chosen.append(request)
            if not queues[tenant]:
                del queues[tenant]
        return chosen

    def admitted(self, request: WaitingRequest, view: QueueView) -> None:
        self._last = request.info.tenant
        self._served[self._last] = self._served.get(self._last, 0.0) + self.input_weight * request.num_tokens

    def ended(self, request: RunningRequest, view: QueueView) -> None:
        tenant = request.info.tenant
        self._served[tenant] = self._served.get(tenant, 0.0) + self.output_weight * request.num_generated

    def facts(self) -> dict[str, Any]:
        served = self._served.values()
        return {"tenants": len(served), "most_served": max(served, default=0), "least_served": min(served, default=0)}


class Edf(ScoredScheduling):
    """Earliest deadline first: the client's `hint.deadline_s`, seconds from arrival to the first token it wants.

    Requests without a deadline come last, oldest first. Source: Liu and Layland, Scheduling Algorithms for
    Multiprogramming in a Hard-Real-Time Environment, 1973.

    Args:
        max_passed: most requests that may pass another; None: no bound.
    """

    def __init__(self, max_passed: int | None = None) -> None:
        self.max_passed = max_passed

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        hint = request.info.hint
        deadline_s = None if hint is None else hint.deadline_s
        return math.inf if deadline_s is None else request.arrival_s + deadline_s
