"""Signals as exceptions, and the exit status they lead to."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from framework.cli.signals import describe, exit_status, interrupts
from framework.errors import Interrupted


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_interrupts_once_and_the_handlers_are_put_back(number: signal.Signals, status: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted) as caught, interrupts():
            _killed_twice(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert (exit_status(caught.value), describe(caught.value)) == (status, number.name)


def _killed_twice(number: signal.Signals) -> None:
    try:
        os.kill(os.getpid(), number)
    finally:
        os.kill(os.getpid(), number)  # must not disturb the writing of what there is


def test_ctrl_c_ends_with_130() -> None:
    assert (exit_status(KeyboardInterrupt()), describe(KeyboardInterrupt())) == (130, "Ctrl-C")


def test_a_signal_that_is_ignored_stays_ignored_as_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with interrupts():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
