"""Scheduling plugins with one fault each, and right ones that the kit must pass."""

from __future__ import annotations

import random

from framework.interfaces.scheduling import Scheduling, ScoredScheduling
from framework_testing import scheduling as kit


class Newest(Scheduling):
    """Right: the newest is next, and preempted first."""

    max_passed = 7

    def order(self, waiting, view):
        return waiting[::-1]

    def victim(self, running, view):
        return running[0]

    def share(self, request, num_tokens, budget):
        return max(1, budget // 2)


class KeepsThoseOfBefore(Newest):
    last = ()

    def order(self, waiting, view):
        before, self.last = self.last, waiting
        return before if len(before) == len(waiting) else waiting


class Stale(ScoredScheduling):
    """Keeps the hit of a request that has gone."""

    needs_hits = True

    def __init__(self):
        self.seen = []

    def score(self, request, view):
        self.seen.append(request)
        return -self.seen[0].hit_tokens


class ByHashOfTenant(ScoredScheduling):
    """Python's hash of a text is another one in every process: of fifteen texts the order is too."""

    max_passed = 8

    def score(self, request, view):
        return hash(f"{request.info.tenant} {request.info.session}")


class PreemptsTheLastAdmitted(Newest):
    """Right, though it preempts whoever was admitted last, for ever: the engine lets those return first, admits nobody
    in a step that preempted, and admits who has room alone, so that the oldest goes on."""

    def __init__(self):
        self.admissions = {}

    def admitted(self, request, view):
        self.admissions[request.number] = len(self.admissions)

    def victim(self, running, view):
        return max(running, key=lambda one: self.admissions[one.number])


def wrong(name, check, base=Newest, **methods):
    """A right plugin with these methods in place of its own, and the check that must catch it."""
    return type(name, (base,), methods), check


RUNS, CHUNKS, ALIKE = (
    kit.check_every_request_runs,
    kit.check_chunks_are_computed,
    kit.check_the_same_arrivals_are_ordered_alike,
)
MUTANTS = [
    (KeepsThoseOfBefore, RUNS),
    (Stale, RUNS),
    (ByHashOfTenant, ALIKE),
    wrong("Loses", RUNS, order=lambda self, waiting, view: waiting[1:] if len(waiting) > 3 else waiting),
    wrong("NamesTwice", RUNS, order=lambda self, waiting, view: [waiting[0], *waiting[:-1]]),
    # Reads what is cached, and has not said so.
    wrong("Unasked", RUNS, ScoredScheduling, score=lambda self, request, view: -request.hit_tokens),
    wrong("AnotherVictim", kit.check_it_ends_where_blocks_run_out, victim=lambda self, running, view: view.running[0]),
    wrong("ChunkAboveTheBudget", CHUNKS, share=lambda self, request, num_tokens, budget: num_tokens),
    wrong("EmptyChunk", CHUNKS, share=lambda self, request, num_tokens, budget:
          0 if request.priority == 0 else budget),
    wrong("ByChance", ALIKE, ScoredScheduling, score=lambda self, request, view: random.random()),
    wrong("WordyFacts", kit.check_its_facts_are_plain, facts=lambda self: {"passed": [1, 2]}),
]  # fmt: skip
RIGHT = [(plugin, kit.scheduling_checks) for plugin in (Newest, PreemptsTheLastAdmitted)]
