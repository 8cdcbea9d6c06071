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

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

DISTRIBUTION = "kvcache-framework"

SINCE: Mapping[int, str] = MappingProxyType({1: "0.1.0"})
"""The first framework version of each contract, up to `framework.interfaces.CONTRACT`."""


def reason_against(distribution: str, *, version: str = __version__, since: Mapping[int, str] = SINCE) -> str:
    """Why an installed distribution's plugins cannot be used with framework `version`; empty when they can.

    Refused: a dependency on kvcache-framework that excludes `version`; one without an upper bound whose lowest version
    belongs to another contract. A distribution that declares no such dependency is let in.
    """
    if re.sub(r"[-_.]+", "-", distribution).lower() == DISTRIBUTION:  # PEP 503; where packaging is absent, too
        return ""
    try:
        declared = importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return ""
    return judge(declared, version=version, since=since)


def judge(declared: Iterable[str], *, version: str = __version__, since: Mapping[int, str] = SINCE) -> str:
    """`reason_against` for these Requires-Dist lines; lines that cannot be read say nothing."""
    from packaging.version import Version

    specifier = _specifier_on_us(declared)
    if specifier is None:
        return ""
    asks, here = f"{DISTRIBUTION}{specifier}", Version(version)
    if not (specifier.contains(here, prereleases=True) or specifier.contains(here.base_version)):
        return f"it asks for {asks}, and {version} is installed"
    made_for, current = contract_of(specifier, since), _contract_at(here, since)
    if made_for is None or made_for == current or _is_bounded(specifier):
        return ""
    return (
        f"it was made for plugin contract {made_for} ({asks}), and {version} has contract {current}; "
        f"an upper bound beyond {version} would say that it works here"
    )


def contract_of(specifier: SpecifierSet, since: Mapping[int, str] = SINCE) -> int | None:
    """The contract in force at the lowest framework version a specifier admits; None when it names none."""
    from packaging.version import Version

    lowest = [Version(part.version) for part in specifier if part.operator in (">=", ">", "~=", "==") and
              not part.version.endswith(".*")]  # fmt: skip
    return _contract_at(max(lowest), since) if lowest else None


def _contract_at(version: Version, since: Mapping[int, str]) -> int:
    from packaging.version import Version

    release = Version(version.base_version)  # a candidate of 1.0 has the contract of 1.0
    begun = [number for number, first in since.items() if Version(first) <= release]
    return max(begun, default=min(since))


def _is_bounded(specifier: SpecifierSet) -> bool:
    return any(part.operator in ("<", "<=", "~=", "==", "===") for part in specifier)


def _specifier_on_us(declared: Iterable[str]) -> SpecifierSet | None:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for line in declared:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) == DISTRIBUTION and applies:
            return requirement.specifier
    return None
