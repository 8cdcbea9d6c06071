"""A plugin that never returns is ended and named; one that is only slow is left alone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from framework.errors import PluginError, TimedOut
from framework.interfaces.eviction import ScoredPolicy
from framework.interfaces.mode import Mode
from framework.modes.watchdog import Watchdog

STALL_S = 0.4


def spin() -> None:
    while True:
        pass


class Policy(ScoredPolicy):
    """Does in `score` what it is asked to."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def score(self, block: Any, now: float) -> float:
        self.act()
        return 0.0


def outlast() -> None:
    """A loop that thinks it can handle everything, a few times."""
    for _ in range(3):
        try:
            spin()
        except:  # noqa: E722
            continue


@pytest.mark.parametrize("act", [spin, lambda: time.sleep(1000), outlast], ids=["spins", "sleeps", "catches all"])
def test_a_call_that_does_not_return_is_ended_and_named(act: Callable[[], Any]) -> None:
    begun = time.monotonic()
    says = r"eviction Policy\.score \(test_watchdog.py:\d+\): has not returned for 0.4 s"
    with pytest.raises(PluginError, match=says), Watchdog(stall_s=STALL_S, grace_s=5.0):
        Policy(act).score(None, 0.0)
    assert time.monotonic() - begun >= STALL_S


class WholeRun(Mode):
    """A mode of a package: its `run` is the run."""

    def run(self, config: Any, on_begin: Any) -> dict[str, Any]:
        for _ in range(20):
            Policy(lambda: time.sleep(0.1)).score(None, 0.0)
        return {}


def test_a_mode_takes_as_long_as_its_run_does() -> None:
    with Watchdog(stall_s=STALL_S):
        WholeRun().run(None, None)


def test_what_is_under_way_is_cleaned_up_and_failures_of_requests_do_not_swallow_it() -> None:
    seen: list[Any] = []

    def serve() -> None:
        try:
            while True:
                try:
                    Policy(spin).score(None, 0.0)
                except Exception as error:  # as the engine contains a plugin's failure
                    seen.append(error)
        finally:
            seen.append("cleaned up")

    with pytest.raises(PluginError), Watchdog(stall_s=STALL_S):
        serve()
    assert seen == ["cleaned up"]


def test_many_short_calls_and_long_work_of_our_own_are_no_stall() -> None:
    end = time.monotonic() + 4 * STALL_S
    with Watchdog(stall_s=STALL_S):
        while time.monotonic() < end - 2 * STALL_S:
            Policy(lambda: time.sleep(0.001)).score(None, 0.0)
        while time.monotonic() < end:
            pass


@pytest.mark.parametrize(("inner", "blamed"), [(spin, "Policy"), (lambda: None, "Outer")], ids=["hangs", "returns"])
def test_the_innermost_call_that_does_not_return_is_the_one_named(inner: Callable[[], Any], blamed: str) -> None:
    class Outer(Policy):
        pass

    def again() -> None:
        while True:
            Policy(inner).score(None, 0.0)

    with pytest.raises(PluginError, match=rf"eviction {blamed}\.score"), Watchdog(stall_s=STALL_S):
        Outer(again).score(None, 0.0)


@pytest.mark.parametrize("act", [spin, lambda: time.sleep(1000)], ids=["spins", "sleeps"])
def test_a_run_that_takes_too_long_is_ended_wherever_it_is(act: Callable[[], Any]) -> None:
    with pytest.raises(TimedOut, match=r"run.timeout_s=0.3 seconds$"), Watchdog(timeout_s=0.3):
        act()
    with pytest.raises(TimedOut, match=r"; it was in eviction Policy\.score \(test_watchdog"), Watchdog(timeout_s=0.3):
        Policy(act).score(None, 0.0)


def test_without_limits_nothing_is_started() -> None:
    before = threading.active_count()
    with Watchdog():
        assert threading.active_count() == before
    with Watchdog(stall_s=100.0):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


NATIVE = """
import ctypes
from framework.interfaces.eviction import ScoredPolicy
from framework.interfaces.mode import Mode
from framework.modes.watchdog import Watchdog
class Deaf(ScoredPolicy):
    def score(self, block, now):
        libc, mutex = ctypes.{dll}(None), ctypes.create_string_buffer(64)
        while True:
            libc.pthread_mutex_lock(mutex)
with Watchdog({limit}=0.3, grace_s=0.5):
    Deaf().score(None, 0.0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="locks a mutex of the C library twice")
@pytest.mark.parametrize(("dll", "limit"), [("CDLL", "stall_s"), ("PyDLL", "timeout_s"), ("PyDLL", "stall_s")])
def test_native_code_that_does_not_return_ends_the_process_and_shows_where_it_was(dll: str, limit: str) -> None:
    """A PyDLL keeps the interpreter's lock, so that no other thread runs either."""
    command = [sys.executable, "-c", NATIVE.format(dll=dll, limit=limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done
    assert "Timeout" in done.stderr
    assert "in score" in done.stderr, "no stack was printed"


def test_a_call_that_swallows_what_ends_it_is_ended_by_the_process() -> None:
    program = """
import time
from framework.interfaces.eviction import ScoredPolicy
from framework.interfaces.mode import Mode
from framework.modes.watchdog import Watchdog
class Deaf(ScoredPolicy):
    def score(self, block, now):
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                continue
with Watchdog(stall_s=0.3, grace_s=0.5):
    Deaf().score(None, 0.0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done
    assert "in score" in done.stderr, "no stack was printed"
