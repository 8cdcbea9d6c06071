"""Routers that look at no prefix: by turns, by chance, by load, by session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

from framework.errors import InvalidArgument
from framework_fleet.router import ReplicaView, RoutedRequest, Router, ScoredRouter


class RoundRobin(Router):
    """Each replica in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        self._turn += 1
        return replicas[(self._turn - 1) % len(replicas)]


class ByChance(Router):
    """Any replica, all alike.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(f"framework_fleet.random:{seed}")

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return replicas[int(self._random.random() * len(replicas))]


class LeastLoad(ScoredRouter):
    """The replica with fewest requests under way that this router sent it."""

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        return replica.active


class SessionAffinity(Router):
    """A session stays where its first request went, the replica with fewest requests under way.

    Where that has left, the session moves; requests without a session go where fewest are under way.

    Args:
        most_sessions: remembered, the least recently seen forgotten first.
    """

    def __init__(self, most_sessions: int = 100_000) -> None:
        if most_sessions < 1:
            raise InvalidArgument(f"most_sessions must be at least 1, found {most_sessions}")
        self.most_sessions = most_sessions
        self._of: OrderedDict[str, int] = OrderedDict()

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        least = min(replicas, key=lambda replica: replica.active)
        if request.session is None:
            return least
        there = {replica.index: replica for replica in replicas}
        chosen = there.get(self._of.get(request.session, -1), least)
        self._of[request.session] = chosen.index
        self._of.move_to_end(request.session)
        while len(self._of) > self.most_sessions:
            self._of.popitem(last=False)
        return chosen
