"""Greed keeps every promise of an observer."""

from __future__ import annotations

from typing import Any

import pytest
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call
from framework.types import BlockHash, BlockId, RequestId
from framework_testing import observer_checks

from framework_example.observer import Greed


@pytest.mark.parametrize("check", observer_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(Greed)


def test_what_a_call_evicted_counts_for_its_request() -> None:
    observer = Greed()
    evicted = CacheEvent("evict", [BlockId(3), BlockId(4)], [BlockHash(b"a"), BlockHash(b"b")])
    observer.heard(Call("extend", RequestId(7)), [evicted])
    assert observer.evicted == {7: 2}
