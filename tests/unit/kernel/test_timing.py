"""How long timing goes on."""

from __future__ import annotations

import time

from framework.kernel.timing import time_on_cpu


def test_a_call_that_takes_longer_than_the_budget_is_made_once() -> None:
    turns: list[int] = []

    def slow(turn: int) -> None:
        turns.append(turn)
        time.sleep(0.02)

    found = time_on_cpu({"slow": slow}, 0.001)["slow"]
    assert turns == [0]
    assert len(found.samples) == 1
    assert found.median_s >= 0.02


def test_a_quick_call_is_warmed_up_twice_and_timed_at_least_five_times() -> None:
    turns: list[int] = []
    found = time_on_cpu({"quick": turns.append}, 1e-6 * 1e6 * 0.01)["quick"]
    assert len(turns) == len(found.samples) + 2
    assert len(found.samples) >= 5
