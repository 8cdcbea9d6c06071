"""Parts of all guards: naming a plugin, showing what it raised or returned, containing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from numbers import Integral
from reprlib import Repr
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from framework import errors
from framework.errors import FrameworkError, Interruption, OutOfBlocks, PluginError

OUTSIDE = (KeyboardInterrupt, Interruption)
"""Raised into whatever runs, by a user, a signal or the watchdog: no plugin's failure, so nothing contains it."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

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


def text_of(error: BaseException) -> str:
    """`str(error)`; of an error whose text cannot be had, its type."""
    try:
        return str(error)
    except OUTSIDE:
        raise
    except BaseException:
        return shown(error)


def shown(value: object) -> str:
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


class Boundary:
    """Names the failures of one plugin.

    Args:
        what: the kind, in words: "eviction policy".
        cls: the plugin's class.
        passing: errors of the contract that leave the boundary as they are.
    """

    def __init__(self, what: str, cls: type, passing: tuple[type[FrameworkError], ...] = ()) -> None:
        self.what, self.cls, self._passing = what, cls, passing

    def fault(self, hook: str, rule: str) -> PluginError:
        """The error of a plugin whose `hook` broke `rule`."""
        error = PluginError(self._named(hook, rule))
        error.names_plugin = True
        return error

    def _named(self, hook: str, text: str) -> str:
        return f"{origin_of(self.cls)}: {self.what} {self.cls.__name__}.{hook}: {text}"

    def call(self, hook: str, method: Callable[..., Any], *given: Any) -> Any:
        """`method(*given)`, contained. Hooks of a step write this out: a call more costs them 60 ns."""
        try:
            return method(*given)
        except BaseException as error:
            self.contain(hook, error)

    def iterate(
        self, hook: str, method: Callable[..., Iterable[Any]], *given: Any, passing: tuple[type[Exception], ...] = ()
    ) -> Iterator[Any]:
        """What `method(*given)` yields. All that it raises is contained, GeneratorExit too, but for `passing`."""
        answers = self.call(hook, lambda: iter(method(*given)))
        while True:
            try:
                answer = next(answers)
            except StopIteration:
                return
            except passing:
                raise
            except BaseException as error:
                self.contain(hook, error)
            yield answer

    def contain(self, hook: str, error: BaseException, doing: str = "") -> NoReturn:
        """Raise what `hook` raised as a PluginError, unless it belongs to the contract or comes from outside.

        An error of the contract that somebody else's plugin raised keeps its class and gets the plugin's name in front;
        OutOfBlocks, by which allocators answer, stays as it is, and so does what names a plugin already.

        Args:
            doing: follows what was raised: " for 3 blocks".
        """
        if isinstance(error, OUTSIDE):
            raise error
        if isinstance(error, self._passing):
            error = _readable(error)
            if not (isinstance(error, OutOfBlocks) or getattr(error, "names_plugin", False) or is_own(self.cls)):
                error.args = (self._named(hook, text_of(error)), *error.args[1:])
                if isinstance(error, PluginError):
                    error.names_plugin = True
            raise error
        raise self.fault(hook, f"raised {shown(error)}{doing}") from error

    def wrong(self, hook: str, rule: str, found: Any) -> NoReturn:
        """Raise the error of a plugin whose `hook` must do as `rule` says and returned `found`."""
        raise self.fault(hook, f"{rule}, returned {shown(found)} ({type(found).__name__})")


def contained(method: Callable[Concatenate[Any, Given], Answer]) -> Callable[Concatenate[Any, Given], Answer]:
    """Of a method of an interface that of its guard: it calls the plugin's, whose answer needs no check.

    Hooks of a step of the allocator write this out: it costs 0.3 us more.
    """
    hook = method.__name__

    def call(self: Any, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        try:
            return getattr(self.plugin, hook)(*given, **named)  # type: ignore[no-any-return]
        except BaseException as error:
            boundary: Boundary = self._boundary
            boundary.contain(hook, error)

    return call


def _readable(error: FrameworkError) -> FrameworkError:
    """`error`, or one of the framework's own class where the plugin's has no text that can be read."""
    try:
        str(error)
    except OUTSIDE:
        raise
    except BaseException:
        kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
        made: FrameworkError = kind(shown(error))
        return made
    return error


def construct(kind: str, name: str, cls: type, arguments: Mapping[str, Any]) -> Any:
    """`cls(**arguments)`.

    Raises:
        FrameworkError: what the constructor raised on purpose, with the plugin's kind and name in front unless its
            words begin with an option's key.
        PluginError: it raised anything else, or a flag of its kind, such as `bypass`, is not True or False.
    """
    try:
        made = cls(**arguments)
    except OUTSIDE:
        raise
    except FrameworkError as error:
        if error.args and isinstance(error.args[0], str) and not error.args[0].startswith(f"{kind}."):
            error.args = (f"{kind} {name!r}: {error.args[0]}", *error.args[1:])
        raise
    except BaseException as error:
        raise PluginError(f"{kind} {name!r} ({origin_of(cls)}): its constructor raised {shown(error)}") from error
    check_flags(kind, made)
    return made


def check_flags(kind: str, made: object) -> None:
    """Read what the interfaces say of a plugin as True or False, such as `bypass`.

    Raises:
        PluginError: a flag that is neither, or cannot be read.
    """
    boundary = Boundary(kind, type(made))
    for flag in _flags(type(made)):
        value = boundary.call(flag, getattr, made, flag)
        if type(value) is not bool:
            raise boundary.fault(flag, f"must be True or False, is {shown(value)}")


def _flags(cls: type) -> tuple[str, ...]:
    """What the interfaces that `cls` implements say of it as True or False."""
    bases = (base for base in cls.__mro__ if base.__module__.startswith("framework.interfaces."))
    return tuple(name for base in bases for name, value in vars(base).items() if type(value) is bool)


def is_count(value: object) -> bool:
    """Whether it is an int, Python's or NumPy's, of 0 or more; a bool is none."""
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 0
