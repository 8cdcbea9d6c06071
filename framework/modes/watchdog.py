"""Ends a run in which a plugin does not return, or that takes too long."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from framework.errors import FrameworkError, Interruption, PluginError, TimedOut
from framework.registry.kinds import KINDS
from framework.tiers.worker import THREAD

_SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default, so that a late one harms nobody; interrupts a sleep
_OURS = ("framework.", "torch.", "hydra.", "omegaconf.", "transformers.")
_TOOLKIT = ("framework.paged.", "framework.interfaces.")  # base classes: the object may be a third-party plugin's


class _Stop(Interruption):
    """Ends the work."""


@dataclass(slots=True)
class _Mark:
    """When a call was seen first and last; put where a frame keeps its trace function, which is not called.

    So a call is known again without keeping its frame, and with it its arguments, alive.
    """

    first_s: float
    last_s: float

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        elapsed, before = 0.0, time.monotonic()
        while not self._ended.wait(self._interval) and self.error is None:
            now = time.monotonic()
            # A stopped process does not age: SIGSTOP is no plugin's fault.
            passed, before = min(now - before, 2 * self._interval), now
            last, elapsed = elapsed, elapsed + passed
            self._look(last, elapsed)

    def _look(self, last_s: float, now_s: float) -> None:
        """Mark the calls under way, and end the work for the innermost one that is too long, or for its own length."""
        stalled: tuple[str, _Mark] | None = None
        latest: tuple[str, _Mark | None] = "", None
        for thread in (self._watched, *(one for one in _store_threads() if one not in self._older)):
            for call, described in _plugin_calls(thread):
                mark = call.f_trace
                if mark is not None and not isinstance(mark, _Mark):
                    continue  # somebody is debugging
                if mark is None or mark.last_s < last_s:  # a generator may have yielded since
                    mark = call.f_trace = _Mark(now_s, now_s)
                mark.last_s, latest = now_s, (described, mark)
                if self._stall_s is not None and now_s - mark.first_s >= self._stall_s:
                    stalled = described, mark
        if self._timeout_s is not None and now_s >= self._timeout_s:
            where = f"; it was in {latest[0]}" if latest[0] else ""
            self._end(TimedOut(f"the run was ended after run.timeout_s={self._timeout_s:g} seconds{where}"), latest[1])
        elif stalled is not None:
            rule = f"has not returned for {self._stall_s:g} seconds (run.stall_timeout_s; null lets it take any time)"
            self._end(PluginError(f"{stalled[0]}: {rule}"), stalled[1])

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
        return mark is not None and any(call.f_trace is mark for call, _ in _plugin_calls(self._watched))

    def _interrupt(self) -> None:
        if self._by_signal:
            signal.pthread_kill(self._watched, _SIGNAL)  # type: ignore[arg-type]
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(_Stop))


def _store_threads() -> list[int]:
    """The threads beside the watched one that call plugins: those that copy blocks between tiers."""
    return [thread.ident for thread in threading.enumerate() if thread.name == THREAD and thread.ident is not None]


def _plugin_calls(thread: int) -> Iterator[tuple[FrameType, str]]:
    """The frames by which a thread's stack enters a plugin, outermost first, and each in words.

    As `eviction Forever.victim (forever.py:12)`, with the line where the thread is.
    """
    frames, frame = [], sys._current_frames().get(thread)
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
    """The plugin whose method runs in this frame; None when it is none."""
    module = str(frame.f_globals.get("__name__", "")) + "."
    if not frame.f_code.co_argcount or (module.startswith(_OURS) and not module.startswith(_TOOLKIT)):
        return None
    first = frame.f_locals.get(frame.f_code.co_varnames[0])
    return first if _kind_of(first) else None


def _kind_of(value: object) -> str:
    """The kind of plugin that an object is, "" for none."""
    bases = {f"{cls.__module__}:{cls.__qualname__}" for cls in type(value).__mro__}
    return next((kind.name for kind in KINDS.values() if kind.base in bases), "")
