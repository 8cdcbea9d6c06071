"""Ends a run in which a call into a plugin does not return, or that takes too long."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from framework.errors import FrameworkError, Interruption, PluginError, TimedOut
from framework.interfaces.below import THREAD
from framework.registry.culprit import RUNS_ALL
from framework.registry.kinds import every_kind

_SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default, so that a late one harms nobody; interrupts a sleep
_OURS = ("framework.", "torch.", "hydra.", "omegaconf.", "transformers.")
_TOOLKIT = ("framework.paged.", "framework.interfaces.")  # base classes: the object may be a third-party plugin's


class _Stop(Interruption):
    """Ends the work."""


class Watchdog:
    """`with Watchdog(stall_s=..., timeout_s=...):` around the work of the main thread; elsewhere it watches nothing.

    About once a second a signal's handler looks at the stack for calls into plugins that are under way, so that a call
    costs nothing more, and raises where one has taken too long. Native code that does not return to the interpreter
    lets no handler run: `grace_s` later faulthandler prints the stacks and ends the process with status 1.

    Args:
        stall_s: seconds one call into a plugin may take; None: any.
        timeout_s: seconds all may take; None: any.

    Attributes:
        error: why the work was ended, once it was; what an exception passing through it stands for.

    Raises:
        PluginError: from the `with` block: a call did not return; names plugin, hook, file and line.
        TimedOut: from the `with` block.
    """

    def __init__(self, *, stall_s: float | None = None, timeout_s: float | None = None, grace_s: float = 30.0) -> None:
        self._stall_s, self._timeout_s = (math.inf if limit is None else limit for limit in (stall_s, timeout_s))
        self._grace_s, self._interval = grace_s, min(1.0, self._stall_s / 8, self._timeout_s / 8)
        self._watches = min(self._stall_s, self._timeout_s) < math.inf and _SIGNAL is not None
        self._seen: dict[FrameType, float] = {}  # calls under way at the last look, and when they were first seen
        self._elapsed, self._looking = 0.0, False
        self._ended = threading.Event()
        self.error: FrameworkError | None = None

    def __enter__(self) -> Watchdog:
        self._watches = self._watches and threading.current_thread() is threading.main_thread()
        if self._watches:
            every_kind()  # imports packages: not in the handler
            self._older = {thread.ident for thread in _threads_below()}
            self._before, self._previous = time.monotonic(), signal.signal(_SIGNAL, self._look)  # type: ignore[arg-type]
            self._thread = threading.Thread(
                target=self._wake, args=(threading.get_ident(),), name="watchdog", daemon=True
            )
            self._thread.start()
            self._arm(min(self._stall_s, self._timeout_s))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._watches:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()
            signal.signal(_SIGNAL, self._previous)  # type: ignore[arg-type]
        self._seen.clear()
        if self.error is not None and (error is None or isinstance(error, _Stop)):
            raise self.error from None

    def _wake(self, thread: int) -> None:
        while not self._ended.wait(self._interval):
            signal.pthread_kill(thread, _SIGNAL)  # type: ignore[arg-type]

    def _look(self, number: int, frame: FrameType | None) -> None:
        if self._ended.is_set() or self._looking or sys.gettrace() is not None:  # a debugger takes its time
            return
        self._looking = True
        try:
            self._look_at(frame)
        finally:
            self._looking = False

    def _look_at(self, frame: FrameType | None) -> None:
        now = time.monotonic()
        # A stopped process does not age: SIGSTOP is no plugin's fault.
        self._elapsed, self._before = self._elapsed + min(now - self._before, 2 * self._interval), now
        threads = [
            sys._current_frames().get(one.ident or 0) for one in _threads_below() if one.ident not in self._older
        ]
        calls = dict(call for top in (frame, *threads) for call in _plugin_calls(top))
        if self.error is not None:
            if not self._seen.keys() & calls.keys():  # the call is over, and what follows it may take its time
                faulthandler.cancel_dump_traceback_later()
                return
            raise _Stop
        self._seen = {call: self._seen.get(call, self._elapsed) for call in calls}
        stalled = [call for call, since in self._seen.items() if self._elapsed - since >= self._stall_s]
        if self._elapsed >= self._timeout_s:
            where = f"; it was in {[*calls.values()][-1]}" if calls else ""
            self.error = TimedOut(f"the run was ended after run.timeout_s={self._timeout_s:g} seconds{where}")
        elif stalled:  # the innermost
            rule = f"has not returned for {self._stall_s:g} seconds (run.stall_timeout_s; null lets it take any time)"
            self.error, self._seen = PluginError(f"{calls[stalled[-1]]}: {rule}"), {stalled[-1]: 0.0}
        self._arm(0.0 if self.error else min(self._stall_s, self._timeout_s - self._elapsed))
        if self.error:
            raise _Stop

    def _arm(self, left_s: float) -> None:
        """Let the process end where no handler runs from now on until the time is up."""
        with suppress(OSError, ValueError, RuntimeError, OverflowError):  # further off than clocks go, or no stderr
            faulthandler.dump_traceback_later(left_s + self._grace_s, exit=True, file=sys.__stderr__ or sys.stderr)


def _threads_below() -> list[threading.Thread]:
    """The threads beside the watched one that call plugins: those of what lies below the pool."""
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def _plugin_calls(top: FrameType | None) -> Iterator[tuple[FrameType, str]]:
    """The calls by which a stack enters a plugin, outermost first: each one's frame, and it in words.

    As `eviction Forever.victim (forever.py:12)`, with the line where the thread is.
    """
    frames, frame = list[FrameType](), top
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    before = None
    for frame in reversed(frames):
        owner = _owner(frame)
        if owner is not None and owner is not before:
            place = f"{os.path.basename(frames[0].f_code.co_filename)}:{frames[0].f_lineno}"
            yield frame, f"{_kind_of(owner)} {type(owner).__name__}.{frame.f_code.co_name} ({place})"
        before = owner


def _owner(frame: FrameType) -> Any:
    """The plugin whose method runs in this frame; None when it is none, or one that is the whole run."""
    module = str(frame.f_globals.get("__name__", "")) + "."
    if not frame.f_code.co_argcount or (module.startswith(_OURS) and not module.startswith(_TOOLKIT)):
        return None
    first = frame.f_locals.get(frame.f_code.co_varnames[0])
    return first if _kind_of(first) not in ("", *RUNS_ALL) else None


def _kind_of(value: object) -> str:
    """The kind of plugin that an object is, "" for none."""
    bases = {f"{cls.__module__}:{cls.__qualname__}" for cls in type(value).__mro__}
    return next((kind.name for kind in every_kind().values() if kind.base in bases), "")
