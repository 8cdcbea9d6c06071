"""Groups of blocks and the shadow of LRU."""

from __future__ import annotations

from learning_streams import conversations

from framework.replay.reference import replay
from framework_builtin.eviction.hazard import Hazard
from framework_builtin.eviction.lru import Lru


def test_the_shadow_counts_what_lru_would_have_hit() -> None:
    class Watched(Hazard):
        def returned(self, group, age, used):
            counted.append(group.shadow_hits)
            super().returned(group, age, used)

    counted: list[int] = []
    paths = conversations(300)
    found = replay(paths, Lru(), 200).hit_blocks
    replay(paths, Watched(tolerance=0.0), 200)
    assert abs(sum(counted) - found) <= 0.02 * found
