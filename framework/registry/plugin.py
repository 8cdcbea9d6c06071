"""One plugin as it is found: kind, name, place and distribution."""

from __future__ import annotations

from dataclasses import dataclass

from framework.registry.contract import DISTRIBUTION


@dataclass(frozen=True, slots=True, order=True)
class Plugin:
    """One entry point as installed, or a class named by its place. `value` is `module:Class` or `file.py:Class`."""

    kind: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def full_name(self) -> str:
        """`DISTRIBUTION:NAME`: means this plugin, whoever else offers its name."""
        return f"{self.distribution}:{self.name}"

    @property
    def is_built_in(self) -> bool:
        """Whether the framework's own distribution offers it."""
        from packaging.utils import canonicalize_name

        return canonicalize_name(self.distribution) == DISTRIBUTION
