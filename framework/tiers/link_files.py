"""Files of measured links, which a tier of a configuration can name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.errors import ConfigError
from framework.tiers.links import Link

VERSION, FILE = 1, "links.json"
_NUMBERS = ("read_bytes_per_s", "write_bytes_per_s", "read_operation_s", "write_operation_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """The model of a link as a measurement gives it: `Link`, with None for a bandwidth that has no bound."""

    read_bytes_per_s: float | None
    write_bytes_per_s: float | None
    read_operation_s: float
    write_operation_s: float
    duplex: bool

    def link(self) -> Link:
        """As a replay uses it."""
        read, write = self.read_bytes_per_s, self.write_bytes_per_s
        return Link(
            read_bytes_per_s=float("inf") if read is None else read,
            write_bytes_per_s=float("inf") if write is None else write,
            read_operation_s=self.read_operation_s,
            write_operation_s=self.write_operation_s,
            duplex=self.duplex,
        )


def read_link(named: str, store: str) -> dict[str, Any]:
    """The settings of a tier that a file of measured links gives.

    Args:
        named: FILE, or FILE:NAME for one of its links; a run directory stands for its links.json.
        store: name of the tier's store, which FILE alone looks for; a file of one link gives that.

    Raises:
        ConfigError: no such file or link, or a file of something else.
    """
    text, name = (named, "") if Path(named).expanduser().exists() else _split(named)
    path = Path(text).expanduser()
    path = path / FILE if path.is_dir() else path
    links = _links(path)
    wanted = name or (store if store in links or len(links) > 1 else next(iter(links)))
    if wanted not in links:
        raise ConfigError(
            f"{path} has no link {wanted!r}; it has {', '.join(map(repr, links))}: name one as link='{text}:NAME'"
        )
    return _settings(path, wanted, links[wanted])


def _split(named: str) -> tuple[str, str]:
    """FILE and NAME of FILE:NAME; no name where there is no colon."""
    text, colon, name = named.rpartition(":")
    return (text, name) if colon else (named, "")


def _links(path: Path) -> Mapping[str, Any]:
    if path.exists() and not path.is_file():
        raise ConfigError(f"link: {path} is no regular file")
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"link: {path} cannot be read: {error.strerror}; mode=kernel kernel.measure=links writes such a file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"link: {path} is no JSON: {error}") from error
    links = found.get("links") if isinstance(found, Mapping) else None
    if not isinstance(links, Mapping) or not links or found.get("version") != VERSION:
        raise ConfigError(
            f"link: {path} is no file of measured links of version {VERSION}; mode=kernel kernel.measure=links writes "
            "one"
        )
    return links


def _settings(path: Path, name: str, link: Any) -> dict[str, Any]:
    keys = [*_NUMBERS, "duplex"]
    if not isinstance(link, Mapping) or not set(keys) <= link.keys():
        raise ConfigError(f"link: {path}: {name!r} must have {', '.join(keys)}")
    for key in _NUMBERS:
        number = isinstance(link[key], (int, float)) and not isinstance(link[key], bool)
        if not number and not (link[key] is None and key.endswith("bytes_per_s")):
            raise ConfigError(f"link: {path}: {name!r}: {key} must be a number, found {link[key]!r}")
    return {key: link[key] for key in keys}
