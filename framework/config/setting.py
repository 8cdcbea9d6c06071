"""One setting of a section: its default, its meaning and its bounds, declared beside the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, ClassVar, TypeVar, cast

from framework.errors import ConfigError, shown
from framework.registry.signatures import Signature, convert, did_you_mean, listing, signature

INT64 = 2**63 - 1
S = TypeVar("S", bound="Section")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number may be, inclusive but for `above`; of a list, each entry. None: no bound on that side."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def check(self, key: str, value: Any) -> None:
        """Refuse a number outside these bounds, or one that is not finite.

        Raises:
            ConfigError: names the key, the bound and the value found.
        """
        if isinstance(value, (list, tuple)):
            for entry in value:
                self.check(key, entry)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} must be a finite number, found {value}")
        if self.at_least is not None and value < self.at_least:
            raise ConfigError(f"{key} must be at least {self.at_least}, found {shown(value)}")
        if self.above is not None and value <= self.above:
            raise ConfigError(f"{key} must be above {self.above}, found {shown(value)}")
        highest = INT64 if self.at_most is None else self.at_most
        if value > highest:
            raise ConfigError(f"{key} must be at most {highest}, found {shown(value)}")


def setting(
    default: Any = MISSING,
    doc: str = "",
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    of_a_model: bool = False,
) -> Any:
    """A field of a `Section`: its default, what it means, and the numbers it may be.

    Args:
        of_a_model: only a run that computes a model reads it.
    """
    bounds = Bounds(at_least, above, at_most)
    return field(default=default, metadata={"doc": doc, "bounds": bounds, "of_a_model": of_a_model})


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A group of settings. Making one checks every value: types are converted, bounds enforced.

    Raises:
        ConfigError: a value of another type or out of bounds; names the key as the command line writes it.
    """

    section: ClassVar[str] = ""
    """Its name on the command line; empty for the top level."""

    def __post_init__(self) -> None:
        annotations = _annotations(cast(Any, type(self)))
        for field_ in fields(self):
            key = key_of(type(self), field_.name)
            value = convert(getattr(self, field_.name), annotations[field_.name], key)
            if (bounds := field_.metadata.get("bounds")) is not None:
                bounds.check(key, value)
            object.__setattr__(self, field_.name, value)

    @classmethod
    def parse(cls: type[S], values: Mapping[str, Any]) -> S:
        """The section of these values; a key that is absent has its default.

        Raises:
            ConfigError: no mapping, an unknown key, a wrong type, a value out of bounds.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{cls.section} must be a mapping, found {shown(values)}; set its keys, as in {cls.section}.KEY=VALUE"
            )
        known = {field_.name for field_ in fields(cls)}
        for key in values:
            if key not in known:
                near = did_you_mean(str(key), known)
                names = listing(field_.name for field_ in fields(cls))
                raise ConfigError(f"unknown key {key_of(cls, str(key))!r}; keys: {names}{near}")
        for field_ in fields(cls):
            if field_.default is MISSING and field_.default_factory is MISSING and field_.name not in values:
                raise ConfigError(f"{key_of(cls, field_.name)} has no value; set {key_of(cls, field_.name)}=...")
        return cls(**values)

    def plain(self) -> dict[str, Any]:
        """Key -> value, as YAML and JSON hold them."""
        return {field_.name: plain(getattr(self, field_.name)) for field_ in fields(self)}


def plain(value: Any) -> Any:
    """A value as YAML and JSON hold it: a tuple or a set is a list, a path is text, a member of an Enum its name."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (tuple, set, frozenset)) else value


def settings_of(section: type[Section]) -> Iterator[tuple[str, Any, str]]:
    """Key, default and meaning of every setting of a section that has a default, in order."""
    for field_ in fields(section):
        if field_.default is not MISSING:
            yield key_of(section, field_.name), field_.default, str(field_.metadata["doc"])


def key_of(section: type[Section], name: str) -> str:
    """A setting's key as the command line writes it."""
    return f"{section.section}.{name}" if section.section else name


@cache
def _annotations(section: Any) -> dict[str, Any]:
    found: Signature = signature(section)
    return {parameter.name: parameter.annotation for parameter in found.parameters}
