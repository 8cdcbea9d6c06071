"""A constructor's parameters, and values checked against their types."""

from __future__ import annotations

import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NewType, Union

from framework.errors import ConfigError, InvalidPlugin, shown

MISSING: Any = inspect.Parameter.empty
"""Stands for "no default" in `Parameter.default`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One keyword of a constructor. `annotation` is resolved, `Any` where there is none or it cannot be resolved."""

    name: str
    annotation: Any
    default: Any = MISSING

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING


@dataclass(frozen=True, slots=True)
class Signature:
    """The keywords of a constructor, in order; `open` when it also takes any other keyword (`**options`)."""

    parameters: tuple[Parameter, ...]
    open: bool = False

    def names(self) -> list[str]:
        """The parameters' names, in order."""
        return [parameter.name for parameter in self.parameters]


def signature(cls: type) -> Signature:
    """The keywords that `cls(...)` takes. Runs nothing of `cls`.

    Raises:
        PluginError: it has a parameter that cannot be given by keyword, and that has no default.
    """
    found: list[Parameter] = []
    is_open = False
    module = sys.modules.get(cls.__module__)
    names = getattr(inspect.unwrap(inspect.getattr_static(cls, "__init__")), "__globals__", None)
    if names is None:
        names = vars(module) if module else {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            is_open = True
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY and parameter.default is MISSING:
            raise InvalidPlugin(f"{cls.__module__}.{cls.__qualname__}: parameter {name!r} cannot be given by keyword")
        elif parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            found.append(Parameter(name, _resolved(parameter.annotation, names), parameter.default))
    return Signature(tuple(found), is_open)


def _resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    """One annotation alone, so that a name known only to type checkers spoils no other."""
    if annotation is MISSING:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(names))
    except Exception:  # whatever an annotation raises, the value then goes unchecked
        return Any


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest choice, or nothing when none is near."""
    near = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def listing(choices: Iterable[str]) -> str:
    """`a, b, c`, or `none`."""
    return ", ".join(choices) or "none"


def convert(value: Any, annotation: Any, where: str) -> Any:
    """`value` as the annotation wants it: 1 becomes 1.0 for a float, 1e3 1000 for an int, a list a tuple, and text that
    says a number or a truth value, as an environment variable's does, what it says; all else must fit already.

    Raises:
        ConfigError: it does not fit; names `where`, the type wanted and the value found.
    """
    if annotation is Any or isinstance(annotation, (str, typing.TypeVar)):
        return value
    if isinstance(annotation, NewType):
        return convert(value, annotation.__supertype__, where)
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return convert(value, typing.get_args(annotation)[0], where)
    if origin is Literal:
        return _literal(value, typing.get_args(annotation), where)
    if origin in (Union, types.UnionType):
        return _union(value, typing.get_args(annotation), annotation, where)
    if origin is not None:
        return _collection(value, origin, annotation, where)
    return _plain(value, annotation, where)


_TRUTH = {"true": True, "yes": True, "y": True, "on": True, "1": True,
          "false": False, "no": False, "n": False, "off": False, "0": False}  # fmt: skip
"""Texts that are truth values: OmegaConf's."""


def _literal(value: Any, allowed: Sequence[Any], where: str) -> Any:
    if isinstance(value, str) and bool in map(type, allowed) and value not in allowed:
        value = _TRUTH.get(value.lower(), value)
    for choice in allowed:
        if value == choice and isinstance(value, bool) == isinstance(choice, bool):
            return choice
    words = [str(choice) for choice in allowed]
    raise ConfigError(
        f"{where} must be one of {', '.join(words)}, found {shown(value)}{did_you_mean(shown(value), words)}"
    )


def _union(value: Any, members: Sequence[Any], annotation: Any, where: str) -> Any:
    for exact in members:
        if exact is type(value):
            return value
    errors: list[ConfigError] = []
    for member in members:
        try:
            return convert(value, member, where)
        except ConfigError as error:
            errors.append(error)
    concrete = [error for error, member in zip(errors, members, strict=True) if member is not type(None)]
    if len(concrete) == 1:
        raise ConfigError(concrete[0].args[0].replace(", found", " or null, found"))
    raise _wrong(value, annotation, where)


def _collection(value: Any, origin: Any, annotation: Any, where: str) -> Any:
    arguments = typing.get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(value, annotation, where)
        item = arguments[1] if len(arguments) == 2 else Any
        return {key: convert(entry, item, f"{where}.{key}") for key, entry in value.items()}
    if origin is Callable and not callable(value):
        raise _wrong(value, "a function", where)
    if not (isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset))):
        return value
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _wrong(value, annotation, where)
    if origin is tuple and Ellipsis not in arguments:
        if len(arguments) != len(value):
            raise _wrong(value, annotation, where)
        return tuple(convert(entry, item, where) for entry, item in zip(value, arguments, strict=True))
    item = arguments[0] if arguments else Any
    converted = [convert(entry, item, f"{where}[{index}]") for index, entry in enumerate(value)]
    return origin(converted) if origin in (tuple, set, frozenset) else converted


def _plain(value: Any, annotation: Any, where: str) -> Any:
    if annotation is None or annotation is type(None):
        if value is None:
            return None
        raise _wrong(value, annotation, where)
    if not isinstance(annotation, type):
        return value
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong(value, annotation, where) from None
    if annotation is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if annotation in (int, float) and isinstance(value, str):
        try:
            return annotation(value)
        except ValueError:
            raise _wrong(value, annotation, where) from None
    if annotation is bool and isinstance(value, str) and value.lower() in _TRUTH:
        return _TRUTH[value.lower()]
    if annotation is int and isinstance(value, bool):
        raise _wrong(value, annotation, where)
    if issubclass(annotation, Enum) and isinstance(value, str):
        if value in annotation.__members__:
            return annotation[value]
        return _literal(value, list(annotation.__members__), where)
    if annotation is Path and isinstance(value, str):
        return Path(value)
    if annotation is tuple and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, annotation):
        raise _wrong(value, annotation, where)
    return value


def _wrong(value: Any, annotation: Any, where: str) -> ConfigError:
    return ConfigError(f"{where} must be {describe(annotation)}, found {shown(value)}")


def describe(annotation: Any) -> str:
    """A type as people write it: `float`, `int | None`, `Literal['max', 'pow2']`."""
    if annotation is MISSING or annotation is Any:
        return "anything"
    if annotation is None or annotation is type(None):
        return "null"
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__name__
    items = typing.get_args(annotation)
    if (
        typing.get_origin(annotation) in (tuple, list, set, frozenset, Sequence)
        and items[-1:]
        and (items[1:] in ((), (Ellipsis,)))
    ):
        return f"a list of {describe(items[0])}"
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(describe(member) for member in typing.get_args(annotation))
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")
