"""Check of `facts()`, which all kinds share that have it: plain values, and nothing changed by asking."""

from __future__ import annotations

from typing import Any

from framework.errors import PluginError
from framework.guard.boundary import Boundary
from framework.guard.facts import checked_facts
from framework.testing.driver import Violation


def require_plain_facts(kind: str, plugin: Any) -> None:
    """Ask twice: names to texts and finite numbers, both times the same.

    Raises:
        Violation.
    """
    boundary = Boundary(kind, type(plugin))
    try:
        first, second = (checked_facts(boundary, plugin.facts()) for _ in range(2))
    except PluginError as error:
        raise Violation(str(error)) from error
    except Exception as error:
        raise Violation(f"{type(plugin).__name__}.facts raised {error!r}") from error
    if first != second:
        raise Violation(f"{type(plugin).__name__}.facts changed by being asked: {first}, then {second}")
