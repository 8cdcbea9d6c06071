"""Calling one of our own constructors with a user's options: unknown, missing and mistyped ones are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from framework.errors import ConfigError
from framework.registry.signatures import convert, did_you_mean, listing, signature

T = TypeVar("T")


def call_checked(what: str, target: Callable[..., T], options: Mapping[str, Any]) -> T:
    """`target(**options)`, after checking keys and values against its signature.

    Args:
        what: how the user wrote it, such as `workload.chat`; begins every message.
        target: a class or a function whose parameters have type hints.

    Raises:
        ConfigError: a key it does not take (with the nearest one it does), a required one missing, a value of another
            type, or a number that is not finite.
    """
    offered = {parameter.name: parameter for parameter in signature(cast(type, target)).parameters}
    arguments = {}
    for key, value in options.items():
        if key not in offered:
            hint = did_you_mean(key, offered) or f"; it has: {listing(offered)}"
            raise ConfigError(f"{what} has no option {key!r}{hint}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{what}.{key} must be finite, found {value!r}")
        arguments[key] = convert(value, offered[key].annotation, f"{what}.{key}")
    for parameter in offered.values():
        if parameter.required and parameter.name not in options:
            raise ConfigError(
                f"{what}.{parameter.name} has no default; set it, as in {what.split('.')[0]}.{parameter.name}=..."
            )
    return target(**arguments)
