"""Each known-bad observer must be caught, by a check that is named here; those that are right pass the whole kit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from framework import registry
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Observed, Observer, RunView
from framework_testing import observer as kit
from framework_testing import observer_checks


class Counts(Observer):
    """A right one, which the mutants inherit from."""

    def start(self, run: RunView) -> None:
        self.run, self.calls = run, 0

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        self.calls += 1


class WritesTokens(Counts):
    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        if call.name == "commit" and call.tokens is not None:
            call.tokens[:1] += 1


class Raises(Counts):
    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        if call.name == "fork":
            raise KeyError(call.request)


class BeginsOnce(Counts):
    begun = False

    def begin(self, cache: Observed) -> None:
        assert not self.begun
        self.begun = True


class NeedsAnEngine(Counts):
    def begin(self, cache: Observed) -> None:
        self.size = cache.block_size

    def results(self) -> Mapping[str, Any]:
        return {} if self.size else {"size": 0}


class SaysMore(Counts):
    def results(self) -> Mapping[str, Any]:
        return {"nobody_declared_me": self.calls}


class WritesMore(Counts):
    def results(self) -> Mapping[str, Any]:
        self.run.write("undeclared.jsonl", {"calls": 1})
        return {}


class ClosesOnce(Counts):
    def close(self) -> None:
        del self.calls


MUTANTS = (
    (WritesTokens, kit.check_it_changes_nothing_of_what_it_is_given),
    (Raises, kit.check_it_changes_nothing_of_what_it_is_given),
    (BeginsOnce, kit.check_it_goes_on_after_a_reset),
    (NeedsAnEngine, kit.check_a_run_that_never_began_has_an_end),
    (SaysMore, kit.check_its_results_and_files_are_declared),
    (WritesMore, kit.check_its_results_and_files_are_declared),
    (ClosesOnce, kit.check_its_results_and_files_are_declared),
)


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=lambda value: value.__name__)
def test_a_bad_observer_is_caught_by_the_check_that_names_its_fault(mutant: type[Observer], check: Any) -> None:
    with pytest.raises(AssertionError):
        check(mutant)


def test_every_check_catches_some_mutant() -> None:
    assert {check for _, check in MUTANTS} == set(observer_checks)


@pytest.mark.parametrize("name", [None, *registry.names("observer")])
@pytest.mark.parametrize("check", observer_checks, ids=lambda check: check.__name__)
def test_right_observers_pass(check: Any, name: str | None) -> None:
    check(Counts if name is None else registry.load("observer", name))
