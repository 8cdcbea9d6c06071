"""Plugins that note who calls their methods."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from framework import registry

MAY_CALL = ("framework.guard.", "framework.interfaces.", "framework_builtin.", "framework.paged.")
"""Guards; base classes and other plugins of ours; and the toolkit, where the caller is the allocator itself."""


def watch(patch: pytest.MonkeyPatch, kind: str, name: str, interface: type, others: set[str], *guards: str) -> str:
    """Note each call of a method of the plugin's interface by anybody else, `guards` being modules that may call it."""
    plugin: type = registry.load(kind, name)

    def noting(method: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            caller = frame.f_globals["__name__"]
            toolkit = caller.startswith("framework.paged.") and frame.f_locals.get("self") is not self
            if not caller.startswith((*MAY_CALL, *guards)) or toolkit:
                others.add(f"{kind}.{method} by {caller}, line {frame.f_lineno}")
            return real(self, *args, **options)

        return call

    for method, _ in inspect.getmembers(interface, inspect.isfunction):
        if not method.startswith("_"):
            patch.setattr(plugin, method, noting(method, getattr(plugin, method)))
    return name
