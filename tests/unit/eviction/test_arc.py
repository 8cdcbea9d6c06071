"""ARC moves its target by what comes back."""

from __future__ import annotations

from eviction_histories import flat, victims
from replay_helpers import workload

from framework.replay.reference import replay
from framework_builtin.eviction.arc import Arc


def test_arc_moves_its_target_by_what_comes_back() -> None:
    policy = Arc()
    assert victims(policy, "aabbc", 4) == ""
    victims_before = victims(Arc(), "abcdefabcd", 4)
    assert victims_before.startswith("ab")
    replay(workload(flat("abcde" * 6)), policy := Arc(), 4)
    assert 0 <= policy._target <= 4
