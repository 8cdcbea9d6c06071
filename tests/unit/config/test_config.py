"""A default is declared once: by the section or the constructor it belongs to, and by no YAML file beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework import registry
from framework.config.config import default_choices, default_settings, options_of
from framework.config.hydra.compose import compose
from framework.config.hydra.source import options_node
from framework.model.options import models

REPOSITORY = Path(__file__).parents[3]
FILES = sorted((REPOSITORY / "conf").glob("**/*.yaml"))


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def repeated(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says that would hold without it: choices, settings, options of what it chooses."""
    choices = default_choices()
    entries = [entry for entry in values.get("defaults", []) if isinstance(entry, dict)]
    chosen = {str(group).removeprefix("override /"): name for entry in entries for group, name in entry.items()}
    found = {group: name for group, name in chosen.items() if choices.get(group) == name}
    defaults = dict(leaves(default_settings()))
    for group, name in {**choices, **chosen}.items():
        if name is not None and group in registry.groups():
            defaults |= leaves(options_node(group, name), f"{group}.")
    own = {key: value for key, value in values.items() if key not in ("defaults", "hydra")}
    return found | {key: value for key, value in leaves(own) if key in defaults and defaults[key] == value}


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return values


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_file_says_only_what_differs_from_the_defaults(path: Path) -> None:
    values = read(path)
    if path.stem == "config":  # its defaults list is where the choices' defaults are declared
        del values["defaults"]
    assert not repeated(values)


def test_options_of_plugins_and_models_have_no_files() -> None:
    folders = {path.parent.name for path in FILES}
    assert folders == {"conf", "experiment", "sweep", "sweeper"}, "a choice's defaults belong into its constructor"


def test_the_models_are_choices_like_plugins() -> None:
    assert options_of("model") == sorted(models())
    assert compose(["model=random"]).model == {"name": "random", "shape": "qwen3-100m", "dtype": "auto", "seed": None}
