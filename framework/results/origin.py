"""Provenance of a run's numbers: trace, checksum, command, date, machine, code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file that the run read.

    Attributes:
        name: its last path component.
        sha256: of its bytes, hexadecimal; empty when `provenance.json` does not say.
    """

    name: str
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What `provenance.json` says; empty strings for what it does not.

    Attributes:
        command: as typed, without the interpreter's path.
        date: when the run began, UTC, to the second.
        machine: processor or accelerator, and the platform.
        revision: of the code; `+` at its end where files had changed.
        inputs: files that the run read.
    """

    command: str = ""
    date: str = ""
    machine: str = ""
    revision: str = ""
    inputs: tuple[Input, ...] = ()


def origin_of(provenance: Any) -> Origin:
    """An `Origin` from what the file holds, whatever it holds."""
    found = _mapping(provenance)
    package, device, cpu = (_mapping(found.get(key)) for key in ("package", "device", "cpu"))
    parts = [device.get("model"), cpu.get("model"), found.get("platform")]
    revision = _text(package.get("git_revision") or package.get("version"))[:40]
    return Origin(
        command=_command(found.get("argv")),
        date=_text(found.get("started_at"))[:19].replace("T", " "),
        machine=", ".join(text for part in parts if (text := _text(part))),
        revision=revision + ("+" if revision and package.get("git_dirty") is True else ""),
        inputs=tuple(_inputs(found.get("inputs"))),
    )


def _inputs(value: Any) -> Sequence[Input]:
    entries = value if isinstance(value, list) else []
    return [
        Input(name=PurePath(_text(entry.get("name"))).name, sha256=_text(entry.get("sha256"))[:64])
        for entry in entries
        if isinstance(entry, Mapping) and _text(entry.get("name"))
    ]


def _command(argv: Any) -> str:
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return ""
    first, *rest = argv
    path = PurePath(first)
    if path.suffix == ".py":
        module = path.parent.name if path.stem == "__main__" else path.stem
        words = ["python", "-m", f"framework.{module}"] if "framework" in path.parts else ["python", path.name]
    else:
        words = [path.name]
    return " ".join([*words, *map(shlex.quote, rest)])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
