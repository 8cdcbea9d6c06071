"""Calling one of our own constructors with a user's options: unknown, missing and mistyped ones are named."""

from __future__ import annotations

import difflib
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from framework.errors import ConfigError

T = TypeVar("T")


def call_checked(what: str, target: Callable[..., T], options: Mapping[str, Any]) -> T:
    """`target(**options)`, after checking keys and values against its signature.

    Args:
        what: how the user wrote it, such as `workload.chat`; begins every message.
        target: a class or function with type hints of bool, int, float, str, Path, Literal, None, unions and
            sequences of these. Whole numbers are welcome as floats; lists become tuples.

    Raises:
        ConfigError: a key it does not take (with the nearest one it does), a required one missing, or a value of
            another type; NaN and infinities are no numbers here.
    """
    function = target.__init__ if inspect.isclass(target) else target
    parameters = inspect.signature(target).parameters
    hints = get_type_hints(function)
    for key in options:
        if key not in parameters:
            near = difflib.get_close_matches(str(key), parameters, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(parameters)}"
            raise ConfigError(f"{what} has no option {key!r}; {hint}")
    missing = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in options
    ]
    if missing:
        raise ConfigError(f"{what}.{missing[0]} is required; set it on the command line")
    return target(**{key: _checked(f"{what}.{key}", value, hints.get(key, Any)) for key, value in options.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    for choice in _choices(hint):
        matched, result = _match(value, choice)
        if matched:
            return result
    raise ConfigError(f"{name} must be {_described(hint)}, found {value!r}")


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _match(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether `value` is of type `hint`, and the value to pass on."""
    origin = get_origin(hint)
    if hint is Any:
        return True, value
    if hint is None or hint is type(None):
        return value is None, None
    if origin is Literal:
        return value in get_args(hint), value
    if hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return fits, float(value) if fits else value
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if hint is Path:
        return isinstance(value, (str, Path)), Path(value) if isinstance(value, str) else value
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Sequence):
        return _match_sequence(value, get_args(hint)[0])
    return isinstance(value, hint), value


def _match_sequence(value: Any, item_hint: Any) -> tuple[bool, Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        return False, value
    items = [
        next((found for found in (_match(item, c) for c in _choices(item_hint)) if found[0]), None) for item in value
    ]
    if any(found is None for found in items):
        return False, value
    return True, tuple(found[1] for found in items if found is not None)


def _described(hint: Any) -> str:
    words: list[str] = []
    for choice in _choices(hint):
        if get_origin(choice) is Literal:
            words.extend(repr(value) for value in get_args(choice))
        elif choice is type(None):
            words.append("null")
        elif get_origin(choice) is not None:
            words.append(f"a list of {_described(get_args(choice)[0])}")
        else:
            words.append({"float": "a finite number", "Path": "a path"}.get(choice.__name__, choice.__name__))
    return " or ".join(words)
