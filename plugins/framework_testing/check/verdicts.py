"""The class that a word of the command line means, and its kit, check by check, whatever the plugin does."""

from __future__ import annotations

import inspect
import signal
import subprocess
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import framework_testing as testing
from framework import registry
from framework.errors import (
    ConfigError,
    Interruption,
    InvalidPlugin,
    PluginImportError,
    UnknownPlugin,
    did_you_mean,
    listing,
)
from framework.guard.boundary import construct
from framework.registry.lookup import import_class
from framework.registry.signatures import signature

_GIVEN_BY_KIT = ("num_blocks", "block_size", "max_model_len", "hash", "eviction")
_FIXED: Mapping[str, Any] = {"seed": 0, "device": "cpu"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked.

    Attributes:
        name: as it was asked for.
        title: how messages name it, such as "eviction 'lru' (kvcache-framework 0.1.0)".
        make: gives a fresh instance; an allocator's takes the shared values that its kit hands it.
    """

    kind: str
    name: str
    title: str
    cls: type
    make: Callable[..., Any]


def resolve(what: str, kind: str | None = None, options: Mapping[str, Any] | None = None) -> Subject:
    """The plugin meant by an installed name, a `module:Class`, or a `path/to/file.py:Class`.

    Args:
        kind: decides when the name is taken in several kinds, or the class belongs to several.
        options: the constructor's own keywords, checked against its annotations.

    Raises:
        ConfigError: it is ambiguous, an option is wrong, or there is no such kind.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: it cannot be had.
    """
    kinds = [kind] if kind is not None else _kinds_of(what)
    if len(kinds) > 1:
        raise ConfigError(f"{what!r} is of several kinds: {listing(kinds)}; say which with --kind")
    (kind,) = kinds
    title, cls = registry.title(registry.find(kind, what)), registry.load(kind, what)
    whole = signature(cls)
    bound = registry.checked_options(kind, what, options or {}, registry.own_options(cls))
    bound |= {name: value for name, value in _FIXED.items() if name in whole.names()}
    given = (*bound, *(_GIVEN_BY_KIT if kind == "allocator" else ()))
    lacking = [parameter.name for parameter in whole.parameters if parameter.required and parameter.name not in given]
    if lacking:
        raise InvalidPlugin(f"{title} asks for {listing(lacking)}, which no {kind} is given")
    if kind != "allocator":
        construct(kind, what, cls, bound)  # or nothing can be checked
    return Subject(kind, what, title, cls, partial(cls, **bound) if bound else cls)


def _kinds_of(what: str) -> Sequence[str]:
    """The kinds in which something installed has this name; of a class that is not installed, those it implements."""
    every = registry.kinds(with_kit=True)
    installed = [kind for kind in every if any(what in (p.name, p.full_name) for p in registry.entries(kind))]
    if installed:
        return installed
    if ":" not in what:
        everything = sorted({name for kind in every for name in registry.names(kind)})
        raise UnknownPlugin(
            f"no plugin named {what!r} is installed (`python -m framework plugins` lists them; a class that is not "
            f"installed is named MODULE:CLASS or FILE.py:CLASS){did_you_mean(what, everything)}"
        )
    try:
        cls = import_class(what)
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything at import
        raise PluginImportError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    interfaces = {kind: registry.interface_of(kind) for kind in every}
    kinds = [kind for kind in interfaces if isinstance(cls, type) and issubclass(cls, interfaces[kind])]
    if not kinds:
        bases = listing(interface.__name__ for interface in interfaces.values())
        raise InvalidPlugin(f"{what} is no class that implements one of {bases}")
    return kinds


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
