"""SIGTERM and SIGHUP as exceptions, so that what there is gets written before the process ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from framework.errors import Interrupted

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def interrupts() -> Iterator[None]:
    """In the main thread, raise Interrupted at SIGTERM and SIGHUP, once; more of them do not disturb the writing.

    A signal that somebody else handles, or that is ignored (nohup), stays as it is; nested use changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise Interrupted(number)

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def exit_status(error: BaseException) -> int:
    """Of a process ended by Ctrl-C or a signal, as shells count: 130, or 128 and the signal's number."""
    return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)


def describe(error: BaseException) -> str:
    """What interrupted: "SIGTERM", "SIGHUP" or "Ctrl-C"."""
    return signal.Signals(error.number).name if isinstance(error, Interrupted) else "Ctrl-C"
