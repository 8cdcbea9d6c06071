"""Ends a run in which a plugin does not return, or that takes too long."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from framework.errors import FrameworkError, Interruption, PluginError, TimedOut
from framework.interfaces.below import THREAD
from framework.registry.kinds import every_kind

_SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default, so that a late one harms nobody; interrupts a sleep
_OURS = ("framework.", "torch.", "hydra.", "omegaconf.", "transformers.")
_TOOLKIT = ("framework.paged.", "framework.interfaces.")  # base classes: the object may be a third-party plugin's


class _Stop(Interruption):
    """Ends the work."""


class _Mark:
    """Put where a frame keeps its trace function, which is not called: so a call is known again without keeping its
    frame, and with it its arguments, alive.
    """

    def __call__(self, *_: object) -> None:
        """Trace nothing."""


class Watchdog:
    """`with Watchdog(stall_s=..., timeout_s=...):` around the work of this thread.

    A thread looks about once a second which calls into plugins are under way, so that a call costs nothing more. The
    work is ended by a signal in the main thread, which also ends a sleep, and by an asynchronous exception in others.
    Where neither arrives for `grace_s`, the plugin is in native code or swallows everything: the stacks are printed,
    `on_abandon` is called and the process exits with status 1.

    Args:
        stall_s: seconds one call into a plugin may take; None: any.
        timeout_s: seconds all may take; None: any.
        grace_s: seconds to end in.
        on_abandon: given the reason just before the process exits.

    Attributes:
        error: why the work was ended, once it was; what an exception passing through it stands for.

    Raises:
        PluginError: from the `with` block: a call did not return; names plugin, hook, file and line.
        TimedOut: from the `with` block.
    """

    def __init__(
        self,
        *,
        stall_s: float | None = None,
        timeout_s: float | None = None,
        grace_s: float = 30.0,
        on_abandon: Callable[[str], Any] = lambda reason: None,
    ) -> None:
        self._stall_s, self._timeout_s, self._grace_s, self._on_abandon = stall_s, timeout_s, grace_s, on_abandon
        limits = [limit for limit in (stall_s, timeout_s) if limit is not None]
        self._interval = min([1.0, *(limit / 8 for limit in limits)])
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True) if limits else None
        self._ended = threading.Event()
        self.error: FrameworkError | None = None

    def __enter__(self) -> Watchdog:
        self._watched, self._older = threading.get_ident(), _store_threads()
        self._by_signal = _SIGNAL is not None and threading.current_thread() is threading.main_thread()
        if self._thread is not None:
            if self._by_signal:
                self._previous = signal.signal(_SIGNAL, self._on_signal)  # type: ignore[arg-type]
            self._thread.start()
        if self._timeout_s is not None:
            # Native code that keeps the interpreter's lock stops every thread but this one, which needs no lock.
            with suppress(OSError, ValueError, RuntimeError, OverflowError):  # none: further off than clocks go
                faulthandler.dump_traceback_later(
                    self._timeout_s + 2 * self._grace_s, exit=True, file=sys.__stderr__ or sys.stderr
                )
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._timeout_s is not None:
            faulthandler.cancel_dump_traceback_later()
        if self._thread is not None:
            self._thread.join()
            if self._by_signal:
                signal.signal(_SIGNAL, self._previous)  # type: ignore[arg-type]
        if self.error is not None and (error is None or isinstance(error, _Stop)):
            raise self.error from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.error is not None and not self._ended.is_set():
            raise _Stop

    def _watch(self) -> None:
        stall_s = math.inf if self._stall_s is None else self._stall_s
        seen: dict[_Mark, float] = {}  # calls under way at the last look, and when they were first seen
        elapsed, before = 0.0, time.monotonic()
        while not self._ended.wait(self._interval) and self.error is None:
            now = time.monotonic()
            # A stopped process does not age: SIGSTOP is no plugin's fault.
            elapsed, before = elapsed + min(now - before, 2 * self._interval), now
            threads = (self._watched, *(one for one in _store_threads() if one not in self._older))
            calls = [call for thread in threads for call in _plugin_calls(thread)]
            seen = {mark: seen.get(mark, elapsed) for mark, _ in calls}
            stalled = [call for call in calls if elapsed - seen[call[0]] >= stall_s]
            if self._timeout_s is not None and elapsed >= self._timeout_s:
                mark, call = calls[-1] if calls else (None, "")
                where = f"; it was in {call}" if call else ""
                self._end(TimedOut(f"the run was ended after run.timeout_s={self._timeout_s:g} seconds{where}"), mark)
            elif stalled:
                mark, call = stalled[-1]  # the innermost
                rule = f"has not returned for {stall_s:g} seconds (run.stall_timeout_s; null lets it take any time)"
                self._end(PluginError(f"{call}: {rule}"), mark)

    def _end(self, error: FrameworkError, mark: _Mark | None) -> None:
        """Interrupt the work, again and again while the call that has this mark goes on regardless."""
        self.error = error
        in_work = self._goes_on(mark)
        self._interrupt()
        for _ in range(10):
            if self._ended.wait(self._grace_s / 10):
                return
            if self._goes_on(mark):
                self._interrupt()
            elif in_work:
                return  # the call is over, and what follows it may take its time
        reason = f"{type(error).__name__}: {error}; it could not be interrupted"
        print(reason, file=sys.stderr, flush=True)  # noqa: T201
        try:
            faulthandler.dump_traceback(all_threads=True)
            self._on_abandon(reason)
        finally:
            os._exit(1)

    def _goes_on(self, mark: _Mark | None) -> bool:
        return mark is not None and any(found is mark for found, _ in _plugin_calls(self._watched))

    def _interrupt(self) -> None:
        if self._by_signal:
            signal.pthread_kill(self._watched, _SIGNAL)  # type: ignore[arg-type]
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(_Stop))


def _store_threads() -> list[int]:
    """The threads beside the watched one that call plugins: those of what lies below the pool."""
    return [thread.ident for thread in threading.enumerate() if thread.name == THREAD and thread.ident is not None]


def _plugin_calls(thread: int) -> Iterator[tuple[_Mark, str]]:
    """The calls by which a thread's stack enters a plugin, outermost first: each one's mark, and it in words.

    As `eviction Forever.victim (forever.py:12)`, with the line where the thread is. A frame that somebody debugs is
    none.
    """
    frames, frame = [], sys._current_frames().get(thread)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    before = None
    for frame in reversed(frames):
        owner = _owner(frame)
        if owner is not None and owner is not before:
            mark = frame.f_trace = frame.f_trace or _Mark()
            place = f"{os.path.basename(frames[0].f_code.co_filename)}:{frames[0].f_lineno}"
            if isinstance(mark, _Mark):
                yield mark, f"{_kind_of(owner)} {type(owner).__name__}.{frame.f_code.co_name} ({place})"
        before = owner


def _owner(frame: FrameType) -> Any:
    """The plugin whose method runs in this frame; None when it is none."""
    module = str(frame.f_globals.get("__name__", "")) + "."
    if not frame.f_code.co_argcount or (module.startswith(_OURS) and not module.startswith(_TOOLKIT)):
        return None
    first = frame.f_locals.get(frame.f_code.co_varnames[0])
    return first if _kind_of(first) else None


def _kind_of(value: object) -> str:
    """The kind of plugin that an object is, "" for none."""
    bases = {f"{cls.__module__}:{cls.__qualname__}" for cls in type(value).__mro__}
    return next((kind.name for kind in every_kind().values() if kind.base in bases), "")
