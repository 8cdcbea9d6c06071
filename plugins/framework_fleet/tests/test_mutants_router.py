"""Each known-bad router must be caught, by a check that is named here; those that are right pass the whole kit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from framework import registry
from framework_fleet.router import ReplicaView, RoutedRequest, Router, ScoredRouter
from framework_fleet.testing import router as kit
from framework_testing.driver import Violation


class Last(Router):
    """Right: the last of those that are there."""

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return replicas[-1]


class ByMatch(ScoredRouter):
    """Right: the longest match."""

    needs_matches = True

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        return -replica.matched_tokens


class Unasked(ScoredRouter):
    """Reads what is matched, and has not said so."""

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        return -replica.matched_tokens


class Index(Router):
    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Any:
        return replicas[-1].index


class Nobody(Router):
    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Any:
        return None if request.number > 20 else replicas[0]


class Numbered(Router):
    """Takes a replica's number for its place among those that are there."""

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return replicas[request.number % 3 if len(replicas) > 1 else 0]


class Sticky(Router):
    """Remembers a view, which may have left."""

    def __init__(self) -> None:
        self.kept: ReplicaView | None = None

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        self.kept = self.kept or replicas[-1]
        return self.kept


class Chance(Router):
    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return random.choice(replicas)


class HashedSessions(Router):
    """Python's hash of a text is another one in every process."""

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return replicas[hash(request.session) % len(replicas)]


class ForReported(Router):
    """Divides by what was reported, which may be nothing."""

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return min(replicas, key=lambda one: one.active / one.load.running)


class Odd(Last):
    def facts(self) -> dict[str, Any]:
        return {"replicas": [1, 2]}


class Counts(Last):
    def __init__(self) -> None:
        self.asked = 0

    def facts(self) -> dict[str, Any]:
        self.asked += 1
        return {"asked": self.asked}


MUTANTS = {
    Unasked: "check_every_request_ends",
    Index: "check_every_request_ends",
    Nobody: "check_every_request_ends",
    ForReported: "check_every_request_ends",
    Numbered: "check_it_goes_on_where_replicas_leave_and_return",
    Sticky: "check_it_goes_on_where_replicas_leave_and_return",
    Chance: "check_the_same_requests_are_routed_alike",
    HashedSessions: "check_the_same_requests_are_routed_alike",
    Odd: "check_its_facts_are_plain",
    Counts: "check_its_facts_are_plain",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_each_mutant_is_caught_by_its_check(mutant: type[Router]) -> None:
    with pytest.raises(Violation, match=mutant.__name__):
        getattr(kit, MUTANTS[mutant])(mutant)


@pytest.mark.parametrize("check", kit.router_checks)
@pytest.mark.parametrize("right", [Last, ByMatch])
def test_what_is_right_passes(right: type[Router], check: Any) -> None:
    check(right)


@pytest.mark.parametrize("check", kit.router_checks)
@pytest.mark.parametrize("name", registry.names("router"))
def test_each_installed_router_passes_its_kit(name: str, check: Any) -> None:
    check(partial(registry.build, "router", name, {}, {"seed": 0}))
