"""Where NearBest sends a request."""

from __future__ import annotations

from framework.errors import ConfigError
from framework_fleet.router import ReplicaView, RoutedRequest, ScoredRouter


class NearBest(ScoredRouter):
    """Few requests first, each matched share of the prompt worth so many of them."""

    needs_matches = True

    def __init__(self, *, worth: float = 4.0) -> None:
        if worth < 0:
            raise ConfigError("worth must be at least 0")
        self.worth = worth

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        return replica.active - self.worth * replica.matched_tokens / request.num_tokens
