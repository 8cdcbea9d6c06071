"""Parts of all guards: naming a plugin, and showing what it raised or returned."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from numbers import Integral
from reprlib import Repr
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from framework.errors import FrameworkError, Interruption, PluginError, PluginNote, plugin_note

OUTSIDE = (KeyboardInterrupt, Interruption)
"""Raised into whatever runs, by a user, a signal or the watchdog: no plugin's failure."""

_LONGEST = 400  # characters shown of what a plugin raised or returned
_brief = Repr()
_brief.maxlist = _brief.maxtuple = _brief.maxdict = _brief.maxset = _brief.maxfrozenset = 32
_brief.maxstring = _brief.maxother = _LONGEST
_origins: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def remember_origin(cls: type, origin: str) -> None:
    """Note that `cls` came from `origin`, a distribution and its version: the registry knows, when it loads a class."""
    _origins[cls] = origin


def origin_of(cls: type) -> str:
    """The distribution that `cls` came from, with its version; the module of a class that none brought."""
    return _origins.get(cls) or _installed_origin(cls.__module__.partition(".")[0]) or f"module {cls.__module__}"


@cache
def _installed_origin(package: str) -> str:
    from importlib import metadata

    try:
        names = metadata.packages_distributions().get(package)
        return f"{names[0]} {metadata.version(names[0])}" if names else ""
    except (ValueError, OSError, metadata.PackageNotFoundError):  # somebody's metadata is no UTF-8, say
        return ""


def is_own(cls: type) -> bool:
    """Whether `cls` is the framework's or a built-in plugin: what it raises on purpose says enough."""
    return cls.__module__.startswith("framework.") or origin_of(cls).startswith("kvcache-framework ")


def text_of(value: object) -> str:
    """`repr(value)` on one line, cut short; of a value that cannot be shown, its type."""
    try:
        long = isinstance(value, (list, tuple, dict, set, frozenset, str, bytes))
        text = " ".join((_brief.repr(value) if long else repr(value)).split())
        text = text.encode("utf-8", "backslashreplace").decode()
    except OUTSIDE:
        raise
    except BaseException:
        return f"{type(value).__name__} (its text cannot be read)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class Guard:
    """Stands before a plugin and checks what it answers. What the plugin raises passes.

    Args:
        what: the kind, in words: "eviction policy".
        plugin: the plugin, or its class.
    """

    def __init__(self, what: str, plugin: Any) -> None:
        self.what, self.plugin = what, plugin

    @property
    def plugin_class(self) -> type:
        return self.plugin if isinstance(self.plugin, type) else type(self.plugin)

    def fault(self, hook: str, rule: str) -> PluginError:
        """The error of a plugin whose `hook` broke `rule`."""
        return PluginError(PluginNote(f"{where(self.what, self.plugin_class, hook)}: {rule}"))

    def wrong(self, hook: str, rule: str, answer: Any) -> NoReturn:
        """Raise the error of a plugin whose `hook` must do as `rule` says and returned `found`."""
        raise self.fault(hook, f"{rule}, returned {text_of(answer)} ({type(answer).__name__})")


def where(what: str, cls: type, hook: str) -> str:
    """A method of a plugin, in words: `acme-fifo 1.0: eviction policy Fifo.victim`.

    Args:
        what: the kind, in words.
        cls: the plugin's class.
    """
    return f"{origin_of(cls)}: {what} {cls.__name__}.{hook}"


def construct(kind: str, name: str, cls: type, arguments: Mapping[str, Any]) -> Any:
    """`cls(**arguments)`.

    Raises:
        FrameworkError: what the constructor raised on purpose, with the plugin's kind and name in front unless its
            words begin with an option's key.
        PluginError: a flag of its kind, such as `bypass`, is not True or False.
    """
    try:
        made = cls(**arguments)
    except FrameworkError as error:
        is_text = error.args and isinstance(error.args[0], str)
        if is_text and not plugin_note(error) and not error.args[0].startswith(f"{kind}."):
            error.args = (f"{kind} {name!r}: {error.args[0]}", *error.args[1:])
        raise
    check_flags(kind, made)
    return made


def check_flags(kind: str, made: object) -> None:
    """Read what the interfaces say of a plugin as True or False, such as `bypass`.

    Raises:
        PluginError: a flag that is neither.
    """
    guard = Guard(kind, made)
    for flag in _flags(type(made)):
        value = getattr(made, flag)
        if type(value) is not bool:
            raise guard.fault(flag, f"must be True or False, is {text_of(value)}")


def _flags(cls: type) -> tuple[str, ...]:
    """What the interfaces that `cls` implements say of it as True or False."""
    bases = (base for base in cls.__mro__ if base.__module__.startswith("framework.interfaces."))
    return tuple(name for base in bases for name, value in vars(base).items() if type(value) is bool)


def is_count(value: object) -> bool:
    """Whether it is an int, Python's or NumPy's, of 0 or more; a bool is none."""
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 0
