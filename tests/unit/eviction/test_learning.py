"""Policies that learn from requests: each on a stream made for what it claims, and with its claim undone."""

from __future__ import annotations

import numpy as np
import pytest
from learning_streams import conversations, hits

from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.hazard import Hazard
from framework_builtin.eviction.hinted import Hinted
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.tail_lru import TailLru
from framework_builtin.eviction.tool_ttl import ToolTtl
from framework_builtin.eviction.workload_aware import WorkloadAware


@pytest.mark.parametrize("kind", [Hazard, Hinted, WorkloadAware])
def test_who_learns_which_conversations_go_on_beats_lru(kind: type[EvictionPolicy]) -> None:
    paths = conversations()
    assert hits(kind(), paths) > 1.05 * hits(Lru(), paths)


def test_true_hints_help_and_lies_do_not_harm() -> None:
    paths = conversations()
    plain, lru = hits(Hazard(), paths, 800), hits(Lru(), paths, 800)
    assert hits(Hinted(), paths, 800) > plain
    for lie in (0.5, 1.0):
        assert hits(Hinted(), conversations(lie=lie), 800) > lru, lie


class Deaf(Hazard):
    """Hazard that takes all requests for alike."""

    def features(self, facts, num_blocks, gap):
        return (0, 0, 0, 0, 0)


class Amnesiac(WorkloadAware):
    """workload_aware that learns nothing of a return."""

    def returned(self, group, age, used):
        pass


class Gullible(Hinted):
    """Hinted that believes every hint."""

    def score(self, kinds, ages, orders):
        foretold = [self._returns._foretold[kind - 4] if kind >= 4 else 0 for kind in kinds.tolist()]
        return np.array(foretold, np.float64)

    def first_score(self, group):
        return float(self.score(np.array([group.kind]), np.zeros(1), np.zeros(1))[0])


def test_mutants_lose_what_the_policies_gain() -> None:
    paths, lied = conversations(), conversations(lie=1.0)
    assert hits(Deaf(), paths) < hits(Hazard(), paths)
    assert hits(Amnesiac(), paths) < hits(WorkloadAware(), paths)
    assert hits(Gullible(), lied) < hits(Lru(), lied) < hits(Hinted(), lied)


@pytest.mark.parametrize("make", [
    lambda: Hazard(tolerance=-1), lambda: Hazard(tolerance=float("nan")), lambda: Hazard(window=3),
    lambda: TailLru(budget_tokens=-1), lambda: TailLru(next_tokens=-1),
    lambda: ToolTtl(quantile=2),
])  # fmt: skip
def test_parameters_out_of_bounds_are_refused(make) -> None:
    with pytest.raises(InvalidArgument):
        make()
