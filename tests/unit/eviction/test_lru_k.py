"""LRU-K counts uses across evictions."""

from __future__ import annotations

from eviction_histories import victims

from framework_builtin.eviction.lru_k import LruK


def test_lru_k_continues_the_history_of_a_name_it_remembers() -> None:
    history = "abcd" + "a" + "xy"
    assert "a" not in victims(LruK(history=2), history, 3)[1:], "its second use, across an eviction, counts"
    assert victims(LruK(history=0), history, 3) == "abcd"
