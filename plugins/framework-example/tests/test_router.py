"""NearBest keeps every promise of a router, and weighs a match as it means to."""

from __future__ import annotations

from typing import Any

import pytest
from framework_fleet.router import ReplicaView, RoutedRequest
from framework_testing import router_checks

from framework_example.router import NearBest


@pytest.mark.parametrize("check", router_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(NearBest)


def test_a_match_is_worth_some_requests() -> None:
    matched, idle = (ReplicaView(at, 100, 4, lambda at: (20 - 20 * at,), lambda at: 0) for at in (0, 1))
    request = RoutedRequest(number=0, num_tokens=40, hashes=(), block_size=4, now_s=0.0)
    for active, chosen in ((1, matched), (2, matched), (3, idle)):
        matched.active = active
        assert NearBest(worth=4.0).route(request, (matched, idle)) is chosen
