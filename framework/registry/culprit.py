"""The plugin that an exception left, found in its traceback and named by an exception note."""

from __future__ import annotations

import re
from abc import ABC
from types import CodeType, FrameType
from typing import NoReturn

from framework.errors import FrameworkError, PluginError, PluginNote, plugin_note
from framework.guard.boundary import OUTSIDE, Guard, is_own, text_of, where

RUNS_ALL = ("mode", "command")
"""Kinds that call everything else: what leaves the framework's own is no fault of theirs, and a command may exit."""


def named(error: BaseException) -> BaseException:
    """`error`, with a PluginNote where it left a method of a plugin: distribution, class, method and what was raised.

    Called where a run, a step or a command ends, so that a call into a plugin costs nothing. The plugin is that of the
    innermost frame that runs a constructor or a method of an interface. What the framework's own plugins raise on
    purpose, and what comes from outside, such as Ctrl-C, is as it was.

    Returns:
        `error` itself; a PluginError from it where it would end the process quietly, as SystemExit does.
    """
    if isinstance(error, OUTSIDE) or plugin_note(error):
        return error
    call = _innermost(error)
    if call is None:
        return error
    what, plugin, hook = call
    if what in RUNS_ALL and (is_own(plugin) or isinstance(error, SystemExit)):
        return error
    place = where(what, plugin, hook)
    if isinstance(error, FrameworkError):
        if not is_own(plugin):
            error.add_note(PluginNote(f"{place}: {error}"))
        return error
    note = PluginNote(f"{place}: raised {text_of(error)}")
    if isinstance(error, Exception):
        error.add_note(note)
        return error
    made = PluginError(note)
    made.__cause__ = error
    return made


def raise_named(error: BaseException) -> NoReturn:
    """Raise `named(error)`."""
    raise named(error)


def _innermost(error: BaseException) -> tuple[str, type, str] | None:
    """Kind in words, class and method of the last frame of the traceback that runs a plugin's method."""
    call, trace = None, error.__traceback__
    while trace is not None:
        call = _call_of(trace.tb_frame) or call
        trace = trace.tb_next
    return call


def _call_of(frame: FrameType) -> tuple[str, type, str] | None:
    code = frame.f_code
    if not code.co_argcount:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    if isinstance(first, Guard):  # before a plugin that has no frame of its own where it is native code
        hook = code.co_name
        is_hook = not hook.startswith("_") and hasattr(first.plugin_class, hook)
        return (first.what, first.plugin_class, hook) if is_hook else None
    cls = first if isinstance(first, type) else type(first)
    hook = _name_of(cls, code)
    bases = [base for base in cls.__mro__ if _is_interface(base)]
    is_hook = hook == "__init__" or (hook[:1] != "_" and any(hook in vars(base) for base in bases))
    if not bases or not is_hook:
        return None
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", bases[-1].__name__).lower(), cls, hook


def _name_of(cls: type, code: CodeType) -> str:
    """The method of a class that this code is; "" where it is none."""
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if getattr(getattr(value, "__func__", value), "__code__", None) is code:
                return name
    return ""


def _is_interface(cls: type) -> bool:
    """Whether it is an abstract class of the framework or of one of its packages."""
    ours = cls.__module__.startswith("framework")
    return ours and (ABC in cls.__bases__ or cls.__module__.startswith("framework.interfaces."))
