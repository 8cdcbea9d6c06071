"""2Q remembers the names that its first queue evicted."""

from __future__ import annotations

from eviction_histories import victims

from framework_builtin.eviction.two_q import TwoQ


def test_a_name_remembered_by_2q_enters_the_main_queue() -> None:
    policy = TwoQ(newcomers=0.25, ghosts=0.5)
    assert victims(policy, "abcde" + "a" + "fghij", 4) == "abcdefg", "a came back as a ghost and outlives b to g"
