"""Each known-bad order must be caught, by a check that is named here; those that are right pass the whole kit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from framework import registry
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, ScoredScheduling, WaitingRequest
from framework.types import RequestInfo
from framework_testing import scheduling as kit
from framework_testing import scheduling_checks
from framework_testing.driver import Violation


class Newest(Scheduling):
    """Right: the newest is next, and preempted first."""

    max_passed = 7

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return waiting[::-1]

    def victim(self, running: Sequence[RunningRequest], view: QueueView) -> RunningRequest | None:
        return running[0]

    def share(self, request: RequestInfo, num_tokens: int, budget: int) -> int:
        return max(1, budget // 2)


class Loses(Newest):
    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return waiting[1:] if len(waiting) > 3 else waiting


class NamesTwice(Newest):
    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return [waiting[0], *waiting[:-1]]


class KeepsThoseOfBefore(Newest):
    def __init__(self) -> None:
        self.last: Sequence[WaitingRequest] = ()

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        before, self.last = self.last, waiting
        return before if len(before) == len(waiting) else waiting


class ChunkAboveTheBudget(Newest):
    def share(self, request: RequestInfo, num_tokens: int, budget: int) -> int:
        return num_tokens


class EmptyChunk(Newest):
    def share(self, request: RequestInfo, num_tokens: int, budget: int) -> int:
        return 0 if request.priority == 0 else budget


class AnotherVictim(Newest):
    def victim(self, running: Sequence[RunningRequest], view: QueueView) -> RunningRequest | None:
        return view.running[0]


class ByChance(ScoredScheduling):
    def score(self, request: WaitingRequest, view: QueueView) -> float:
        return random.random()


class ByHashOfTenant(ScoredScheduling):
    """Python's hash of a text is another one in every process."""

    max_passed = 8

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        return hash(request.info.tenant)


class Unasked(ScoredScheduling):
    """Reads what is cached, and has not said so."""

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        return -request.hit_tokens


class Stale(ScoredScheduling):
    """Keeps the hit of a request that has gone."""

    needs_hits = True

    def __init__(self) -> None:
        self.seen: list[WaitingRequest] = []

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        self.seen.append(request)
        return -self.seen[0].hit_tokens


class WordyFacts(Newest):
    def facts(self) -> dict[str, Any]:
        return {"passed": [1, 2]}


class PreemptsTheLastAdmitted(Newest):
    """Right, though it preempts whoever was admitted last, for ever: the engine lets those return first, admits nobody
    in a step that preempted, and admits who has room alone, so that the oldest goes on."""

    def __init__(self) -> None:
        self.admissions: dict[int, int] = {}

    def admitted(self, request: WaitingRequest, view: QueueView) -> None:
        self.admissions[request.number] = len(self.admissions)

    def victim(self, running: Sequence[RunningRequest], view: QueueView) -> RunningRequest | None:
        return max(running, key=lambda one: self.admissions[one.number])


MUTANTS = [
    (Loses, kit.check_every_request_runs),
    (NamesTwice, kit.check_every_request_runs),
    (KeepsThoseOfBefore, kit.check_every_request_runs),
    (Unasked, kit.check_every_request_runs),
    (AnotherVictim, kit.check_it_ends_where_blocks_run_out),
    (ChunkAboveTheBudget, kit.check_chunks_are_computed),
    (EmptyChunk, kit.check_chunks_are_computed),
    (ByChance, kit.check_the_same_arrivals_are_ordered_alike),
    (ByHashOfTenant, kit.check_the_same_arrivals_are_ordered_alike),
    (Stale, kit.check_every_request_runs),
    (WordyFacts, kit.check_its_facts_are_plain),
]


RIGHT = {"newest": Newest, "preempts the last admitted": PreemptsTheLastAdmitted}


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=lambda value: value.__name__)
def test_the_kit_catches(mutant: Any, check: Any) -> None:
    with pytest.raises(Violation):
        check(mutant)


@pytest.mark.parametrize("check", scheduling_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [*RIGHT, *registry.names("scheduling")])
def test_those_that_are_right_pass(name: str, check: Any) -> None:
    check(RIGHT[name] if name in RIGHT else partial(registry.build, "scheduling", name))
