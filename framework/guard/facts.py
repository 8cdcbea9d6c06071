"""Facts that plugins report for a run's results, checked."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol

from framework.errors import FrameworkError
from framework.guard.boundary import Boundary

Facts = dict[str, str | int | float]


class Reporting(Protocol):
    """A guarded plugin that reports of itself."""

    def facts(self) -> Facts: ...


def checked_facts(boundary: Boundary, found: Any) -> Facts:
    """What a plugin's `facts` returned: names to texts and finite numbers.

    Raises:
        PluginError: anything else.
    """
    if not isinstance(found, dict) or not all(_is_name(name) and _is_fact(value) for name, value in found.items()):
        boundary.wrong("facts", "must return a dict of names to texts and finite numbers", found)
    return dict(found)


def reported(plugins: Mapping[str, Reporting]) -> dict[str, Any]:
    """The facts of these plugins, by kind, as a result holds them: `eviction_target_blocks`.

    A plugin that fails to report costs no measurement: the result says so as its `first_failure`, and the run failed.
    """
    result: dict[str, Any] = {}
    for kind, plugin in plugins.items():
        try:
            result.update({f"{kind}_{name}": value for name, value in plugin.facts().items()})
        except FrameworkError as error:
            result.setdefault("first_failure", str(error))
    return result


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _is_fact(value: object) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and isfinite(value))
