"""The plugin that an exception left is named by distribution, class and method, and decides the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from framework.cli.exit import sentence, status_of
from framework.errors import (
    ConfigError,
    FrameworkError,
    Interruption,
    InvalidArgument,
    PluginError,
    WorkloadError,
    plugin_note,
)
from framework.guard.boundary import Guard, remember_origin
from framework.interfaces.eviction import ScoredPolicy
from framework.interfaces.observer import Observer
from framework.interfaces.workload import Workload, WorkloadRequest
from framework.registry.culprit import named
from framework_builtin.eviction.lru import Lru
from framework_workloads.trace.format import TraceReader


def left(work: Any) -> BaseException:
    """What leaves `work`, named."""
    try:
        work()
    except BaseException as error:
        return named(error)
    raise AssertionError("it raised nothing")


class Mine(Lru):
    fault: BaseException = KeyError("block 3")

    def victim(self, now: float) -> Any:
        return self._choose()

    def _choose(self) -> Any:
        raise self.fault


remember_origin(Mine, "acme 1.5")


def raises(error: BaseException) -> BaseException:
    policy = Mine()
    policy.fault = error
    return left(lambda: policy.victim(0.0))


def test_an_exception_is_itself_with_a_note_for_which_a_helper_of_the_plugin_is_no_method() -> None:
    error = KeyError("block 3")
    found = raises(error)
    assert found is error
    assert plugin_note(found) == "acme 1.5: eviction policy Mine.victim: raised KeyError('block 3')"
    assert sentence(found) == f"{plugin_note(found)}; set HYDRA_FULL_ERROR=1 for the traceback"
    assert named(found) is found
    assert len(found.__notes__) == 1


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit()])
def test_what_would_end_the_process_quietly_is_an_error(error: BaseException) -> None:
    found = raises(error)
    assert isinstance(found, PluginError)
    assert found.__cause__ is error
    assert sentence(found) == f"PluginError: acme 1.5: eviction policy Mine.victim: raised {error!r}"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interruption()])
def test_what_comes_from_outside_is_nobody_s(error: BaseException) -> None:
    assert raises(error) is error
    assert not plugin_note(error)


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("x"), 1), (FileNotFoundError(2, "x", "y"), 1), (InvalidArgument("x"), 1), (FrameworkError("x"), 1),
     (ConfigError("x"), 2), (WorkloadError("x"), 2)],
)  # fmt: skip
def test_a_plugin_s_failure_is_status_1_and_what_it_says_of_the_input_2(error: Exception, status: int) -> None:
    found = raises(error)
    assert status_of(found) == status
    assert "acme 1.5: eviction policy Mine.victim: " in sentence(found)


def test_our_own_plugin_is_named_for_what_nobody_expected_alone() -> None:
    policy = Lru()
    found = left(lambda: policy.release((1,), 0.0))  # never attached
    assert ": eviction policy Lru.release: raised AttributeError" in sentence(found), sentence(found)


class Scored(ScoredPolicy):
    def score(self, block: Any, now: float) -> float:
        raise ZeroDivisionError


class Reader(TraceReader):
    @classmethod
    def recognises(cls, head: Any, path: Any) -> bool:
        raise ZeroDivisionError


class Late(Workload):
    def requests(self) -> Iterator[WorkloadRequest]:
        yield WorkloadRequest(prompt=[1], output_tokens=1)
        raise ZeroDivisionError

    facts = lambda self: 1 / 0  # type: ignore[assignment, return-value]  # noqa: E731


class Refuses(Lru):
    def __init__(self) -> None:
        raise ZeroDivisionError


class Listens(Observer):
    def heard(self, call: Any, events: Any) -> None:
        Lru().release((1,), 0.0)


@pytest.mark.parametrize(
    ("work", "place"),
    [
        (lambda: Scored().score(None, 0.0), "eviction policy Scored.score"),
        (lambda: Reader.recognises([], None), "trace reader Reader.recognises"),
        (lambda: list(Late().requests()), "workload Late.requests"),
        (lambda: Late().facts(), "workload Late.facts"),
        (lambda: Listens().heard(None, ()), "eviction policy Lru.release"),
        (Refuses, "eviction policy Refuses.__init__"),
    ],
)
def test_the_innermost_method_of_an_interface_is_named(work: Any, place: str) -> None:
    found = left(work)
    assert f": {place}: raised " in plugin_note(found), plugin_note(found)


def test_a_plugin_in_native_code_is_named_by_its_guard() -> None:
    class Bare(Guard):
        def victim(self, text: str) -> None:
            self.plugin.to_int(text)

    class Policy(Lru):
        to_int = staticmethod(int)

    found = left(lambda: Bare("eviction policy", Policy()).victim("no"))
    assert "eviction policy Policy.victim: raised ValueError" in plugin_note(found)


def test_what_left_no_plugin_has_no_note() -> None:
    found = left(lambda: int("no"))
    assert sentence(found).startswith("internal error: ValueError: ")
