"""Versions of the plugin contract, and whether an installed plugin was made for this one.

The contract is one number, `framework.interfaces.CONTRACT`. It grows when an interface changes so that a correct plugin
stops being one; everything else is added so that old plugins go on. A plugin states its contract by the dependency it
declares anyway: the lowest `kvcache-framework` it asks for. Nothing is written for it, and nothing imported to read it.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from framework import __version__

if TYPE_CHECKING:  # an environment with torch alone may lack it
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

DISTRIBUTION = "kvcache-framework"

SINCE: Mapping[int, str] = MappingProxyType({1: "0.1.0"})
"""The first framework version of each contract, up to `framework.interfaces.CONTRACT`."""


def reason_against(distribution: str) -> str:
    """Why an installed distribution's plugins cannot be used with this framework; empty when they can."""
    if canonical(distribution) == DISTRIBUTION:
        return ""
    try:
        return judge(importlib.metadata.requires(distribution) or ())
    except importlib.metadata.PackageNotFoundError:
        return ""


def judge(declared: Iterable[str], *, version: str = __version__, since: Mapping[int, str] = SINCE) -> str:
    """`reason_against` a distribution with these Requires-Dist lines; lines that cannot be read say nothing.

    Refused: a dependency on kvcache-framework that excludes `version`; one without an upper bound whose lowest version
    belongs to another contract. A distribution that declares no such dependency is let in.
    """
    from packaging.version import Version

    specifier = _specifier_on_us(declared)
    if specifier is None:
        return ""
    asks, here = f"{DISTRIBUTION}{specifier}", Version(version)
    if not (specifier.contains(here, prereleases=True) or specifier.contains(here.base_version)):
        return f"it asks for {asks}, and {version} is installed"
    lowest = [Version(part.version) for part in specifier if part.operator in (">=", ">")]
    if not lowest or any(part.operator in ("<", "<=", "~=", "==", "===") for part in specifier):
        return ""
    made_for, current = _contract_at(max(lowest), since), _contract_at(here, since)
    if made_for == current:
        return ""
    return (
        f"it was made for plugin contract {made_for} ({asks}), and {version} has contract {current}; "
        f"an upper bound beyond {version} would say that it works here"
    )


def _contract_at(version: Version, since: Mapping[int, str]) -> int:
    from packaging.version import Version

    release = Version(version.base_version)  # a candidate of 1.0 has the contract of 1.0
    begun = [number for number, first in since.items() if Version(first) <= release]
    return max(begun, default=min(since))


def canonical(distribution: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _specifier_on_us(declared: Iterable[str]) -> SpecifierSet | None:
    from packaging.requirements import InvalidRequirement, Requirement

    for line in declared:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonical(requirement.name) == DISTRIBUTION and applies:
            return requirement.specifier
    return None
