"""What may be set of a plugin: a typed dataclass made from its constructor, for Hydra to check and complete."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import field, make_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework import registry
from framework.errors import InvalidPlugin
from framework.model.options import MODELS
from framework.registry.signatures import Parameter, signature


def options_schema(kind: str, name: str) -> Any:
    """A structured OmegaConf node: `name`, then the plugin's own options with their types and defaults.

    An option without default is `???`; a type OmegaConf does not know is `Any` (the registry checks it later).

    Raises:
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: see `registry.load`.
    """
    return copy.deepcopy(_options_schema(kind, name, registry.load(kind, name)))


@lru_cache(maxsize=256)  # making the classes takes ten times as long as a copy, and a sweep composes again for each job
def _options_schema(kind: str, name: str, plugin: type) -> Any:
    own = registry.own_options(plugin).parameters
    if any(parameter.name == "name" for parameter in own):
        raise InvalidPlugin(f"{kind} {name!r}: an option may not be called 'name', which says which plugin is meant")
    return _schema(name, own)


def model_schema(name: str) -> Any:
    """The same for a choice of model."""
    return copy.deepcopy(_model_schema(name))


@lru_cache
def _model_schema(name: str) -> Any:
    return _schema(name, signature(MODELS[name]).parameters)


def _schema(name: str, parameters: Iterable[Parameter]) -> Any:
    fields = [("name", str, field(default=name)), *(_field(parameter) for parameter in parameters)]
    node = OmegaConf.structured(make_dataclass("Options", fields))
    # The made class exists in this process only: the node forgets it, so that a worker can unpickle the config. The
    # leaves keep their types.
    node._metadata.object_type = dict
    node._metadata.ref_type = Any
    return node


_TEXT: Mapping[Any, Any] = {Path: str, Path | None: str | None, Optional[Path]: str | None}  # noqa: UP045
"""Paths are text in YAML: the registry makes them paths."""


def _field(parameter: Parameter) -> tuple[str, Any, Any]:
    default = MISSING if parameter.required else _plain(parameter.default)
    wanted = _TEXT.get(parameter.annotation, parameter.annotation)
    annotation = wanted if _fits(wanted, default) else Any
    if not _fits(annotation, default):
        default = None
    if isinstance(default, (list, dict)):
        return parameter.name, annotation, field(default_factory=lambda: copy.deepcopy(default))
    return parameter.name, annotation, field(default=default)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, set, frozenset)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.name if isinstance(value, Enum) else value


def _fits(annotation: Any, default: Any) -> bool:
    default_field: Any = (
        field(default_factory=lambda: default) if isinstance(default, (list, dict)) else field(default=default)
    )
    try:
        OmegaConf.structured(make_dataclass("Probe", [("value", annotation, default_field)]))
    except (OmegaConfBaseException, ValueError, TypeError):
        return False
    return True
