"""Facts that plugins report for a run's results, checked."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol

from framework.guard.boundary import Guard

Facts = dict[str, str | int | float]


class Reporting(Protocol):
    """A guarded plugin that reports of itself."""

    def facts(self) -> Facts: ...


def checked_facts(guard: Guard, answer: Any, method: str = "facts") -> Facts:
    """What a plugin's `method` returned: names to texts and finite numbers.

    Raises:
        PluginError: anything else.
    """
    if not isinstance(answer, dict) or not all(_is_name(name) and _is_fact(value) for name, value in answer.items()):
        guard.wrong(method, "must return a dict of names to texts and finite numbers", answer)
    return dict(answer)


def reported(plugins: Mapping[str, Reporting]) -> dict[str, Any]:
    """The facts of these plugins, by kind, as a result holds them: `eviction_target_blocks`."""
    return {f"{kind}_{name}": value for kind, plugin in plugins.items() for name, value in plugin.facts().items()}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _is_fact(value: object) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and isfinite(value))
