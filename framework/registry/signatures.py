"""A constructor's parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

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
    parameters: list[Parameter] = []
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
            parameters.append(Parameter(name, _resolved(parameter.annotation, names), parameter.default))
    return Signature(tuple(parameters), is_open)


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


def check_arguments(cls: type, given: Mapping[str, Any]) -> None:
    """Refuse an argument of a constructor that is no instance of its annotation, where that is a class or several.

    Raises:
        ConfigError: names the parameter, its type and what was given.
    """
    for one in signature(cls).parameters:
        try:
            fits = isinstance(given[one.name], one.annotation)
        except TypeError:  # a generic type: only that of a function is checked
            kinds: list[Any] = [get_origin(part) for part in (one.annotation, *get_args(one.annotation))]
            fits = given[one.name] is None or callable(given[one.name]) or Callable not in kinds
        if not fits:
            wanted = one.annotation.__name__ if isinstance(one.annotation, type) else one.annotation
            raise ConfigError(f"{one.name} must be {wanted}, found {shown(given[one.name])}")
