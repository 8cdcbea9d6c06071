"""What Hydra composes a configuration of: sections, models and entry points as its configs, beside folders of YAML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING, OmegaConf

from framework import registry
from framework.config.config import conf_folder, default_settings
from framework.errors import FrameworkError, InvalidPlugin
from framework.model.options import models
from framework.registry.signatures import Parameter, signature
from framework.validation import plain

SETTINGS = "settings"
"""The config of every section with its defaults, first in config.yaml's defaults list."""
MODEL = "model"
"""The group of the choices of model, which are no plugins."""
PRESETS = "framework.conf"
"""Entry-point group of optional YAML presets; the value is a dotted package path."""

Names: TypeAlias = list[str]  # the class below has a method called list


class PluginConfigSource(ConfigSource):
    """The groups are the kinds of plugins and `model`, and there is `settings`. Loading one imports that one class.

    Attributes:
        importable_only: list only plugins that can be imported, so that a sweep's `glob(*)` passes over broken ones.
    """

    importable_only = False

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._names: dict[str, Names] = {}

    @staticmethod
    def scheme() -> str:
        return "plugins"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", *_groups())

    def is_config(self, config_path: str) -> bool:
        group, name = _parts(config_path)
        return (group, name) == ("", SETTINGS) or (group in _groups() and self._has(group, name))

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        group = config_path.strip("/")
        if not group:
            return sorted(_groups()) if results_filter != ObjectType.CONFIG else []
        return self._listed(group) if group in _groups() and results_filter != ObjectType.GROUP else []

    def load_config(self, config_path: str) -> ConfigResult:
        group, name = _parts(config_path)
        if not self.is_config(config_path):
            raise ConfigLoadError(f"Config not found : {config_path}")
        if not group:  # what config.yaml calls beside the settings; here, since a launcher's workers compose, too
            OmegaConf.register_new_resolver("short_name", short_name, replace=True)
        values = options_node(group, name) if group else default_settings()
        return ConfigResult(
            config=OmegaConf.create(values), path=self.full_path(), provider=self.provider, header={"package": None}
        )

    def _listed(self, group: str) -> Names:
        if group not in self._names:
            names = sorted(models()) if group == MODEL else registry.names(group)
            if self.importable_only and group != MODEL:
                names = [name for name in names if _imports(registry.find(group, name))]
            self._names[group] = names
        return self._names[group]

    def _has(self, group: str, name: str) -> bool:
        """Whether it can be chosen, be it by `DISTRIBUTION:NAME` or by its place."""
        if group == MODEL:
            return name in models()
        try:
            return bool(registry.find(group, name))
        except FrameworkError:
            return False


def _parts(config_path: str) -> tuple[str, str]:
    group, slash, name = config_path.strip("/").removesuffix(".yaml").partition("/")
    return (group, name) if slash else ("", group)


@lru_cache  # Hydra asks several times, and what does not import is said once
def _imports(plugin: registry.Plugin) -> bool:
    try:
        registry.load(plugin.kind, registry.choice(plugin))
    except FrameworkError as error:
        print(f"skipped: {error}", file=sys.stderr)  # noqa: T201
        return False
    return True


def _groups() -> tuple[str, ...]:
    return (*registry.groups(), MODEL)


def short_name(name: str) -> str:
    """`Mine` of `folder/file.py:Mine`, `package.module:Mine` or `distribution:Mine`, and a plain name as it is."""
    return re.split("[/:]", name)[-1]


def options_node(group: str, name: str) -> dict[str, Any]:
    """A component as a configuration holds it: `name`, then its own options with their defaults, `???` without one.

    Raises:
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: see `registry.load`.
    """
    parameters: Iterable[Parameter]
    if group == MODEL:
        parameters = signature(models()[name]).parameters
    else:
        parameters = registry.own_options(registry.load(group, name)).parameters
    node = {one.name: MISSING if one.required else _held(plain(one.default)) for one in parameters}
    if "name" in node:
        raise InvalidPlugin(f"{group} {name!r}: an option may not be called 'name', which says which plugin is meant")
    return {"name": name, **node}


def _held(value: Any) -> Any:
    return value if isinstance(value, (str, bytes, int, float, list, dict)) else None


class EveryPlugin(SearchPathPlugin):
    """Puts the framework's conf folder, plugins' YAML presets and the entry points on Hydra's search path, last."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for provider, folder in [("framework", conf_folder()), *preset_folders()]:
            search_path.append(provider, f"file://{folder}")
        search_path.append("entry points", "plugins://")


def preset_folders() -> list[tuple[str, Path]]:
    """Distribution and folder of every readable preset package. Imports none; an unreadable one is named on stderr."""
    folders = []
    for point, distribution, _ in registry.points(PRESETS):
        path = registry.source_path(point.value)
        folder = path.parent if path is not None and path.is_file() else path
        if folder is None or not folder.is_dir():
            print(f"skipped: presets {point.name!r}: no folder {point.value}", file=sys.stderr)  # noqa: T201
            continue
        folders.append((distribution, folder))
    return folders


def register(*, importable_only: bool = False) -> None:
    """Let Hydra of this process know the entry points; again is harmless.

    Args:
        importable_only: list only plugins that can be imported, for `glob(*)`.
    """
    PluginConfigSource.importable_only = importable_only
    for plugin in (PluginConfigSource, EveryPlugin):
        Plugins.instance().register(plugin)
