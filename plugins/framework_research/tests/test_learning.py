"""Policies that learn from requests, on streams made for what they claim, with the claim undone, and in an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from learning_streams import conversations, hits

from framework import api
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.eviction.lru import Lru
from framework_research.hazard import Hazard
from framework_research.hinted import Hinted
from framework_research.workload_aware import WorkloadAware


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


@pytest.mark.parametrize("num_blocks", [160, 256, 400])
def test_requests_that_overlap_cost_the_guard_no_more_than_it_allows(tmp_path: Path, num_blocks: int) -> None:
    """In an engine blocks are hit while in use, adopted at commit and held by others; both sides are counted alike."""

    def hit_rate(eviction: str) -> float:
        sessions = {"name": "conversations", "num_sessions": 80, "rate_per_s": 20.0, "think_s": 1.0}
        config = {"mode": "replay", "workload": sessions, "eviction": eviction, "cache": {"num_blocks": num_blocks}}
        run = {"dir": str(tmp_path / eviction), "progress": False}
        return float(api.run({**config, "run": run})["hit_rate"])

    assert hit_rate("hazard") > hit_rate("lru") - 0.005
