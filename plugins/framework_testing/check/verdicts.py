"""A plugin's conformance kit, check by check, whatever the plugin does."""

from __future__ import annotations

import inspect
import signal
import subprocess
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import framework_testing as testing
from framework.errors import Interruption
from framework_testing.check.subject import Subject

Status = Literal["ok", "failed", "timed out", "skipped"]


TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found. One that timed out has found nothing: the plugin may be slow, or the machine busy.

    Attributes:
        check: its name in words.
        rule: what it demands, the first line of its docstring.
        seconds: wall time.
        text: of a failure: the rule broken, what was seen, the shortest calls that lead there, where it was raised; of
            a check that timed out: after how long, and where it was; of one that was skipped: why.
    """

    check: str
    rule: str
    status: Status
    seconds: float
    text: str = ""


class _TimedOut(Interruption):
    """Ends a check that takes too long: no failure of the plugin, so no kit takes it for one."""


def verdicts(
    subject: Subject,
    *,
    only: str = "",
    device: str = "cpu",
    cases: str = "full",
    timeout_s: float = TIMEOUT_S,
    large: bool = False,
) -> Iterator[Verdict]:
    """Run the checks whose name contains `only`, one after another, and say of each how it went.

    Args:
        device, cases: for backends: where to run, and "full" or "small".
        timeout_s: of one check, and five times that of one of the large part. Needs the main thread of a POSIX system,
            and Python code: a call that hangs in native code is not interrupted. 0 waits for ever.
        large: the kit's large part too.
    """
    extra = {"device": device, "cases": cases} if subject.kind == "backend" else {}
    parts = [(getattr(testing, f"{subject.kind}_checks"), timeout_s)]
    if large and has_large_part(subject.kind):
        parts.append((getattr(testing, f"{subject.kind}_large_checks"), 5 * timeout_s))
    for checks, most_s in parts:
        for check in checks:
            if only in check.__name__:
                yield _verdict(subject, check.__name__, partial(check, subject.make, **extra), most_s)


def has_large_part(kind: str) -> bool:
    """Whether the kind's kit has checks of production's sizes."""
    return f"{kind}_large_checks" in testing.__all__


def _verdict(subject: Subject, name: str, check: Callable[[], None], timeout_s: float) -> Verdict:
    start = time.perf_counter()
    status: Status = "failed"
    try:
        with _deadline(timeout_s):
            check()
        status, text = "ok", ""
    except unittest.SkipTest as reason:
        status, text = "skipped", str(reason)
    except AssertionError as error:
        text = _with_place(str(error) or repr(error), error, subject.cls)
    except (_TimedOut, subprocess.TimeoutExpired) as error:
        status = "timed out"
        text = _with_place(f"it took more than {timeout_s:g} s and was stopped", error, subject.cls)
    except (Exception, SystemExit) as error:
        text = _with_place(f"raised {type(error).__name__}: {error}", error, subject.cls)
    seconds = time.perf_counter() - start
    doc = inspect.getdoc(getattr(check, "func", check)) or ""
    words = name.removeprefix("check_").replace("_", " ")
    return Verdict(words, doc.partition("\n")[0], status, seconds, text)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    if not (seconds and main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(*_: Any) -> None:
        raise _TimedOut

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _with_place(text: str, error: BaseException, cls: type) -> str:
    """The text, and the last line of the plugin's own code that the error came through."""
    place = _place(error, cls)
    return f"{text}\nraised at {place}" if place else text


def _place(error: BaseException | None, cls: type) -> str:
    try:
        folder = Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):
        return ""
    place = ""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).resolve().is_relative_to(folder):
                place = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
        error = error.__cause__ or error.__context__
    return place
