"""Least frequently used, with and without aging."""

from __future__ import annotations

from eviction_histories import victims

from framework_builtin.eviction.lfu import Lfu


def test_aging_lets_go_of_what_was_popular_long_ago() -> None:
    text = "a" * 9 + "bcdefghijklmnopqrstuvwxyzABCDEFGH"
    assert "a" not in victims(Lfu(), text, 3)
    assert "a" in victims(Lfu(aged=True), text, 3)
