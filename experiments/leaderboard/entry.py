"""An entry of the leaderboard: one TOML file that names an installed policy and its options."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework import registry
from framework.errors import ConfigError

_KEYS = {"name", "policy", "options", "by", "source"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the leaderboard.

    Attributes:
        name: as it is shown; unique.
        policy: an installed eviction policy.
        options: of its constructor.
        by, source: who enters it, and where it is described.
    """

    name: str
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    source: str = ""

    @property
    def spec(self) -> str:
        """As experiments.gap.cells.build takes it."""
        return " ".join([self.policy, *(f"{key}={json.dumps(value)}" for key, value in self.options.items())])


def read_entries(folder: Path) -> list[Entry]:
    """The entries of a folder's TOML files, by file name.

    Raises:
        ConfigError: a file that is not TOML, a missing or unknown key, or two entries of one name.
    """
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no TOML: {error}") from error
        unknown = sorted(set(found) - _KEYS)
        if unknown or not isinstance(found.get("policy"), str):
            wrong = f"unknown key {unknown[0]!r}" if unknown else "no policy"
            raise ConfigError(f"{path}: {wrong}; an entry has name, policy, options, by and source")
        entry = Entry(**{"name": path.stem, **found})
        if entry.name in entries:
            raise ConfigError(f"{path}: an entry named {entry.name!r} is there already; give another name")
        entries[entry.name] = entry
    return list(entries.values())


def with_installed(entries: Iterable[Entry]) -> list[Entry]:
    """These entries, and every installed policy that none of them enters, at its defaults."""
    entered = list(entries)
    names = {entry.policy for entry in entered}
    others = [registry.find("eviction", name) for name in registry.names("eviction") if name not in names]
    return entered + [Entry(name=other.name, policy=other.name, by=str(other.distribution)) for other in others]
