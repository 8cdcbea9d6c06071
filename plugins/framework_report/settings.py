"""The settings of a run as flat, dotted keys: those that its mode reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from framework import registry
from framework.errors import FrameworkError, RunDirectoryError
from framework.files.jsonl import require_file
from framework.results.layout import CONFIG

Value = str | int | float | bool | None

_NOT_SETTINGS = re.compile(r"^(run|tracker|sweep|experiment|hydra)(\.|$)")
_LONGEST = 500


def settings_of(folder: Path, overrides: Sequence[Any]) -> dict[str, Value]:
    """Dotted key -> value; a component's name stands under its kind (`eviction`), what a list holds under its number
    from 1 (`below.tiers.1.num_blocks`).

    Where a run writes and who follows it are no settings, and neither is what its mode never reads: the engine's
    options in a cache-only run, the model's in a replay.

    Args:
        overrides: words of the command line, for a run that left no readable `config.yaml`.

    Raises:
        RecursionError: a configuration that holds itself.
    """
    if config := config_of(folder):
        unread = _unread(config)
        return {key: value for key, value in _flat(config) if not unread.match(key)}
    pairs = (word.lstrip("+").partition("=") for word in overrides if isinstance(word, str))
    return {key: _parsed(text) for key, _, text in pairs if key and not _NOT_SETTINGS.match(key)}


def config_of(folder: Path) -> Mapping[str, Any]:
    """The configuration that a run left in its `config.yaml`; empty where none can be read."""
    import yaml

    try:
        require_file(folder / CONFIG, RunDirectoryError)
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return config if isinstance(config, Mapping) else {}


def _unread(config: Mapping[Any, Any]) -> re.Pattern[str]:
    """What the run's mode never reads, as a pattern of dotted keys."""
    mode = config.get("mode")
    name = str(mode.get("name") if isinstance(mode, Mapping) else mode or "serve")
    try:
        words = registry.load("mode", name).unread(config)  # type: ignore[attr-defined]
    except FrameworkError:  # of a mode that is not installed here all stand
        return re.compile(r"(?!)")
    return re.compile("|".join(rf"{re.escape(word)}(\.|$)" for word in words))


def _flat(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in node.items():
        dotted = f"{prefix}{key}"
        owner, _, last = dotted.rpartition(".")
        if _NOT_SETTINGS.match(dotted):
            continue
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value, start=1))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{dotted}.")
        elif last == "name" and owner.rpartition(".")[2] in (*registry.kinds(), "model"):
            yield owner, _scalar(value)
        else:
            yield dotted, _scalar(value)


def _parsed(text: str) -> Value:
    import yaml

    try:
        return _scalar(yaml.safe_load(text or "null"))
    except (ValueError, yaml.YAMLError, RecursionError):
        return _scalar(text)


def _scalar(value: Any) -> Value:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "an integer beyond 10^18"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(str(_scalar(item)) for item in value[:50] if not isinstance(item, (list, dict))) + "]"
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)[:_LONGEST])
