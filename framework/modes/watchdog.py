"""Ends a run in which a plugin does not return, or that takes too long.

A thread looks at the stack of the one that works, about once a second: nothing is paid a call. A call into a plugin
that is still the same call after `stall_s` is ended, and so is a run that lasts longer than `timeout_s`.
"""

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
from types import FrameType, TracebackType
from typing import Any

from framework.errors import FrameworkError, Interruption, PluginError, TimedOut
from framework.tiers.worker import THREAD

_SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default, so that a late one harms nobody; interrupts a sleep
_NOT_PLUGINS = ("framework.", "torch.", "hydra.", "omegaconf.", "transformers.")
_TOOLKIT = ("framework.paged.", "framework.interfaces.")  # base classes: the object may be a third-party plugin's


class _Stop(Interruption):
    """Ends the work."""


class Watchdog:
    """`with Watchdog(stall_s=..., timeout_s=...):` around the work of this thread.

    The work is ended by a signal in the main thread, which also ends a sleep, and by an asynchronous exception in
    others. Where neither arrives for `grace_s`, the plugin is in native code or swallows everything: the stacks are
    printed, `on_abandon` is called and the process exits with status 1.

    Args:
        stall_s: seconds one call into a plugin may take; None: any.
        timeout_s: seconds all may take; None: any.
        grace_s: seconds to end in.
        on_abandon: given the reason just before the process exits.

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
        self._thread: threading.Thread | None = None if not limits else threading.Thread(
            target=self._watch, name="watchdog", daemon=True
        )  # fmt: skip
        self._ended = threading.Event()
        self._error: FrameworkError | None = None
        self._held: list[FrameType] = []
        """Calls that may have stalled; what an interrupt is meant for, empty when it is for whatever runs."""

    @property
    def error(self) -> FrameworkError | None:
        """Why the work was ended, once it was; what an exception passing through it stands for."""
        return self._error

    def __enter__(self) -> Watchdog:
        self._watched, self._older = threading.get_ident(), _others()
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
        if self._thread is not None:
            self._thread.join()
            if self._timeout_s is not None:
                faulthandler.cancel_dump_traceback_later()
            if self._by_signal:
                signal.signal(_SIGNAL, self._previous)  # type: ignore[arg-type]
        self._held.clear()
        if self._error is not None and (error is None or isinstance(error, _Stop)):
            raise self._error from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        late = self._error is None or self._ended.is_set()
        if not late and (not self._held or any(held in self._held for held in _outward(frame))):
            raise _Stop

    def _watch(self) -> None:
        elapsed, last, waited = 0.0, time.monotonic(), dict[int, float]()
        while not self._ended.wait(self._interval):
            now = time.monotonic()
            # A stopped process does not age: SIGSTOP is no plugin's fault.
            passed, last = min(now - last, 2 * self._interval), now
            elapsed += passed
            calls = [call for thread in self._threads() for call in _plugin_calls(thread)]
            if self._timeout_s is not None and elapsed >= self._timeout_s:
                self._held = []  # wherever it is by then
                where = f"; it was in {self._described(calls[-1])}" if calls else ""
                self._end(
                    TimedOut(f"the run was ended after run.timeout_s={self._timeout_s:g} seconds{where}"), calls[-1:]
                )
                return
            if self._stall_s is not None:
                waited = {id(call): waited.get(id(call), -passed) + passed for call in calls}
                if self._stalled(calls, waited):
                    return
            del calls

    def _stalled(self, calls: list[FrameType], waited: dict[int, float]) -> bool:
        """Whether a call was ended. `waited`: by id of a call's frame, seconds.

        A frame's id is used again once it is gone; so one seen for half the time is held on to for the other half.
        Not held from the first, since it keeps its arguments alive.
        """
        assert self._stall_s is not None
        self._held = [held for held in self._held if held in calls]
        long = [call for call in calls if waited[id(call)] >= self._stall_s and call in self._held]
        if not long:
            self._held += [call for call in calls if waited[id(call)] >= self._stall_s / 2 and call not in self._held]
            return False
        call = long[-1]
        if any(frame.f_trace is not None for frame in _outward(call)):
            return False  # somebody is debugging
        # A call in another thread cannot be interrupted: the work that waits for it is, wherever it is.
        self._held = [call] if call in _outward(sys._current_frames().get(self._watched)) else []
        self._end(
            PluginError(
                f"{self._described(call)}: has not returned for {self._stall_s:g} seconds "
                "(run.stall_timeout_s; null lets it take any time)"
            ),
            [call],
        )
        return True

    def _described(self, call: FrameType) -> str:
        frames = sys._current_frames()
        thread = next((one for one in self._threads() if call in _outward(frames.get(one))), self._watched)
        return _describe(call, thread)

    def _threads(self) -> list[int]:
        """The watched one, and those that call plugins for it; none that an earlier run left hanging."""
        return [self._watched, *(thread for thread in _others() if thread not in self._older)]

    def _end(self, error: FrameworkError, calls: list[FrameType]) -> None:
        """Interrupt the work until it ends: again and again while one of these calls goes on regardless."""
        self._error = error
        self._interrupt()
        for _ in range(10):
            if self._ended.wait(self._grace_s / 10):
                return
            if any(call in calls for call in _plugin_calls(self._watched)):
                self._interrupt()
            elif self._held:
                return  # the call is over, and what follows it may take its time
        reason = f"{type(error).__name__}: {error}; it could not be interrupted"
        print(reason, file=sys.stderr, flush=True)  # noqa: T201
        try:
            faulthandler.dump_traceback(all_threads=True)
            self._on_abandon(reason)
        finally:
            _kill_children()
            os._exit(1)

    def _interrupt(self) -> None:
        if self._by_signal:
            signal.pthread_kill(self._watched, _SIGNAL)  # type: ignore[arg-type]
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(_Stop))


def _others() -> list[int]:
    """The threads beside the watched one that call plugins: those that copy blocks between tiers."""
    return [thread.ident for thread in threading.enumerate() if thread.name == THREAD and thread.ident is not None]


def _kill_children() -> None:
    """Ranks of a model, say: one that hangs as well would not notice that this process has gone."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _plugin_calls(thread: int) -> list[FrameType]:
    """The frames by which a thread's stack enters a plugin, outermost first."""
    frames = list(_outward(sys._current_frames().get(thread)))[::-1]
    interfaces = tuple(_interfaces().values())
    calls, before = [], None
    for frame in frames:
        owner = _owner(frame, interfaces)
        if owner is not None and owner is not before:
            calls.append(frame)
        before = owner
    return calls


def _owner(frame: FrameType, interfaces: tuple[type, ...]) -> Any:
    """The plugin whose method runs in this frame; None when it is none."""
    module = str(frame.f_globals.get("__name__", "")) + "."
    code = frame.f_code
    if not code.co_argcount or (module.startswith(_NOT_PLUGINS) and not module.startswith(_TOOLKIT)):
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return first if isinstance(first, interfaces) else None


def _interfaces() -> dict[str, type]:
    """Kind -> its base class, of those that were imported: no other has an object."""
    from framework.registry import KINDS

    places = {kind.name: kind.base.split(":") for kind in KINDS.values()}
    found = {kind: getattr(sys.modules.get(module), name, None) for kind, (module, name) in places.items()}
    return {kind: cls for kind, cls in found.items() if cls is not None}


def _describe(call: FrameType, thread: int) -> str:
    """`eviction Forever.victim (forever.py:12)`: the innermost line is where it is."""
    interfaces = _interfaces()
    owner = _owner(call, tuple(interfaces.values()))
    kind = next((kind for kind, cls in interfaces.items() if isinstance(owner, cls)), "plugin")
    inner = sys._current_frames().get(thread) or call
    place = f"{os.path.basename(inner.f_code.co_filename)}:{inner.f_lineno}"
    return f"{kind} {type(owner).__name__}.{call.f_code.co_name} ({place})"
