"""The short base class of policies: `score`, and what it may not be."""

from __future__ import annotations

from dataclasses import fields

import pytest

from framework.errors import PluginError
from framework.interfaces.eviction import BlockView, ScoredPolicy


def test_a_block_used_anew_at_another_depth_is_ranked_by_its_new_depth():
    """Its old entry has the same score, and lies in front until it is looked at."""

    class Flat(ScoredPolicy):
        def score(self, block, now):
            return 0

    depth = [0, 3, 1]
    view = BlockView(**{f.name: [0, 0, 0] for f in fields(BlockView) if f.name != "depth"}, depth=depth)
    policy = Flat()
    policy.attach(view)
    policy.admit([1], 0)
    policy.release([1], 0)
    assert policy.victims(1, 0) == [1]
    depth[1] = 0
    policy.admit([2, 1], 1)
    policy.release([2, 1], 1)
    assert policy.victims(2, 1) == [2, 1], "deepest first"


@pytest.mark.parametrize("time_varying", [False, True])
def test_a_score_that_is_no_number_is_refused(time_varying):
    class Wrong(ScoredPolicy):
        def score(self, block, now):
            return float("nan")

    Wrong.time_varying = time_varying
    policy = Wrong()
    policy.attach(BlockView(**{f.name: [0, 0, 0] for f in fields(BlockView)}))
    policy.admit([1], 0)
    with pytest.raises(PluginError, match=r"Wrong\.score gave nan for block 1"):
        policy.release([1], 0)
