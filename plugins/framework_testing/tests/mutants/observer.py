"""Observers with one fault each, and a right one."""

from __future__ import annotations

from framework.interfaces.observer import Observer
from framework_testing import observer as kit


class Counts(Observer):
    """Right."""

    def start(self, run):
        self.run, self.calls = run, 0

    def heard(self, call, events):
        self.calls += 1


class BeginsOnce(Counts):
    begun = False

    def begin(self, cache):
        assert not self.begun
        self.begun = True


class NeedsAnEngine(Counts):
    def begin(self, cache):
        self.size = cache.block_size

    def results(self):
        return {} if self.size else {"size": 0}


class WritesMore(Counts):
    def results(self):
        self.run.write("undeclared.jsonl", {"calls": 1})
        return {}


def wrong(name, check, **methods):
    """A right observer with these methods in place of its own, and the check that must catch it."""
    return type(name, (Counts,), methods), check


NOTHING, DECLARED = (
    kit.check_it_changes_nothing_of_what_it_is_given,
    kit.check_its_results_and_files_are_declared,
)
MUTANTS = [
    (BeginsOnce, kit.check_it_goes_on_after_a_reset),
    (NeedsAnEngine, kit.check_a_run_that_never_began_has_an_end),
    (WritesMore, DECLARED),
    wrong("WritesTokens", NOTHING, heard=lambda self, call, events:
          call.tokens[:1].__iadd__(1) if call.name == "commit" and call.tokens is not None else None),
    wrong("Raises", NOTHING, heard=lambda self, call, events: {}[call.request] if call.name == "fork" else None),
    wrong("SaysMore", DECLARED, results=lambda self: {"nobody_declared_me": self.calls}),
    wrong("ClosesOnce", DECLARED, close=lambda self: delattr(self, "calls")),
]  # fmt: skip
RIGHT = [(Counts, kit.observer_checks)]
