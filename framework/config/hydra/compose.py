"""From overrides to one checked configuration, over Hydra configs of sections, models and entry points, no YAML."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional, TypeAlias

import yaml
from hydra import version
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from framework import registry
from framework.config.check import parse
from framework.config.config import GROUPS, Config
from framework.config.defaults import conf_folder, default_settings
from framework.config.hydra.overrides import check_choices, groups_of, normalise
from framework.config.hydra.sentences import HYDRA_ERRORS, as_config_error, with_key
from framework.errors import ConfigError, FrameworkError, InvalidPlugin
from framework.model.options import MODELS
from framework.registry.signatures import Parameter, signature

SCHEME = "plugins"
FILES = "yaml"
"""The scheme of folders of YAML files, as Hydra's `file`, whose aliases are bounded."""
MOST_NODES = 100_000
"""Of a YAML file with its aliases written out: ten lines can stand for 10**10."""
EVERY = f"{SCHEME}://every"
IMPORTABLE = f"{SCHEME}://importable"
"""Lists only plugins that can be imported, so that a sweep's `glob(*)` passes over broken ones."""

Names: TypeAlias = list[str]  # the class below has a method called list

SETTINGS = "settings"
"""The config of every section with its defaults, first in config.yaml's defaults list."""

MODEL = "model"
"""The group of the choices of model, which are no plugins."""

PRESETS = "framework.conf"
"""Entry-point group of optional YAML presets; the value is a dotted package path."""


class PluginConfigSource(ConfigSource):
    """The groups are the kinds of plugins and `model`, and there is `settings`. Loading one imports that one class."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._names: dict[str, Names] = {}

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", *_groups())

    def is_config(self, config_path: str) -> bool:
        if config_path.strip("/").removesuffix(".yaml") == SETTINGS:
            return True
        kind, _, name = config_path.strip("/").partition("/")
        return kind in _groups() and self._has(kind, name.removesuffix(".yaml"))

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        group = config_path.strip("/")
        if not group:
            return sorted(_groups()) if results_filter != ObjectType.CONFIG else []
        if group not in _groups() or results_filter == ObjectType.GROUP:
            return []
        names = self._listed(group)
        return [name for name in names if self._imports(group, name)] if self.path == "importable" else names

    def load_config(self, config_path: str) -> ConfigResult:
        if config_path.strip("/").removesuffix(".yaml") == SETTINGS:
            return self._result(OmegaConf.create(default_settings()))
        kind, _, name = config_path.strip("/").partition("/")
        name = name.removesuffix(".yaml")
        if kind not in _groups() or not self._has(kind, name):
            raise ConfigLoadError(f"Config not found : {config_path}")
        return self._result(model_schema(name) if kind == MODEL else options_schema(kind, name))

    def _result(self, config: Any) -> ConfigResult:
        return ConfigResult(config=config, path=self.full_path(), provider=self.provider, header={"package": None})

    def _listed(self, kind: str) -> Names:
        if kind not in self._names:
            self._names[kind] = sorted(MODELS) if kind == MODEL else registry.names(kind)
        return self._names[kind]

    def _has(self, kind: str, name: str) -> bool:
        """Whether it is listed, or says by `DISTRIBUTION:NAME` which of all is meant."""
        if name in self._listed(kind):
            return True
        try:
            return kind != MODEL and ":" in name and bool(registry.find(kind, name))
        except FrameworkError:
            return False

    def _imports(self, kind: str, name: str) -> bool:
        if kind == MODEL:
            return True
        try:
            registry.load(kind, name)
        except FrameworkError as error:
            print(f"skipped: {error}", file=sys.stderr)  # noqa: T201
            self._names[kind].remove(name)
            return False
        return True


class BoundedFiles(FileConfigSource):
    """A folder of YAML files. One whose aliases stand for more than MOST_NODES entries is a ConfigError."""

    @staticmethod
    def scheme() -> str:
        return FILES

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path) / self._normalize_file_name(config_path)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = _num_nodes(yaml.compose(text, Loader=yaml.SafeLoader), {}) if "&" in text and "*" in text else 0
        if found > MOST_NODES:
            raise ConfigError(f"{path}: its aliases stand for {found:.3g} entries; at most {MOST_NODES:,}")
        return super().load_config(config_path)


def _num_nodes(node: Any, known: dict[int, int]) -> int:
    """Of a YAML tree with its aliases written out. Raises RecursionError where one lies within itself."""
    if id(node) not in known:
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        known[id(node)] = 1 + sum(_num_nodes(part, known) for part in pairs)
    return known[id(node)]


def _groups() -> tuple[str, ...]:
    return (*registry.groups(), MODEL)


class EveryPlugin(SearchPathPlugin):
    """Puts the entry points, and plugins' YAML presets, behind the framework's conf folder on Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for provider, folder in preset_folders():
            search_path.append(provider, f"{FILES}://{folder}")
        search_path.append("entry points", EVERY)


def preset_folders() -> list[tuple[str, Path]]:
    """Distribution and folder of every readable preset package. Imports none; an unreadable one is named on stderr."""
    folders = []
    for point, distribution in registry.points(PRESETS):
        path = registry.source_path(point.value)
        folder = path.parent if path is not None and path.is_file() else path
        if folder is None or not folder.is_dir():
            print(f"skipped: presets {point.name!r}: no folder {point.value}", file=sys.stderr)  # noqa: T201
            continue
        folders.append((distribution, folder))
    return folders


def register() -> None:
    """Make Hydra know these classes. Idempotent."""
    for plugin in (PluginConfigSource, BoundedFiles, EveryPlugin):
        Plugins.instance().register(plugin)


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


CONFIG_NAME = "config"


def compose(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> DictConfig:
    """The configuration of these overrides, in either spelling, checked. What notebooks and tests call.

    Args:
        config_dir: a further folder of YAML groups, searched after ours.

    Raises:
        ConfigError: an override or value that cannot be run.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: a chosen component.
    """
    folder = conf_folder()
    normal = normalise(overrides, groups_of(folder), lambda word: Path(word).exists())
    check_choices(normal)
    config = compose_normal(normal, search_path(folder, config_dir))
    checked(config)
    return config


def compose_normal(overrides: Sequence[str], path: ConfigSearchPath, config_name: str = CONFIG_NAME) -> DictConfig:
    """The composed configuration of normalised overrides, not checked and without Hydra's own node.

    Raises:
        ConfigError: Hydra refuses an override; one sentence with the nearest valid choice.
    """
    previous = GlobalHydra.instance().hydra
    version.setbase("1.3")
    try:
        hydra = create_hydra(path)
        config = hydra.compose_config(
            config_name=config_name, overrides=list(overrides), run_mode=RunMode.RUN, with_log_configuration=False
        )
    except HYDRA_ERRORS as error:
        raise as_config_error(error, overrides, path) from error
    finally:
        GlobalHydra.instance().hydra = previous
    del_hydra(config)
    return config


def create_hydra(path: ConfigSearchPath) -> Hydra:
    """A Hydra over this search path, installed as the global one."""
    GlobalHydra.instance().clear()
    return Hydra.create_main_hydra2(task_name="kvlab", config_search_path=path)


def del_hydra(config: DictConfig) -> None:
    """Drop Hydra's own node from a composed configuration."""
    OmegaConf.set_struct(config, False)
    config.pop("hydra", None)
    OmegaConf.set_struct(config, True)


def search_path(
    folder: Path, config_dir: str | Path | None = None, *, importable_only: bool = False
) -> ConfigSearchPath:
    """The conf folder, `config_dir`, plugins' presets, then every entry point.

    Args:
        importable_only: list only plugins that can be imported, for `glob(*)`.

    Raises:
        ConfigError: `config_dir` is no folder.
    """
    register()
    path = create_config_search_path(f"{FILES}://{folder}")
    assert isinstance(path, ConfigSearchPathImpl)
    for element in path.get_path():
        if element.path == EVERY and importable_only:
            element.path = IMPORTABLE
    if config_dir is not None:
        extra = Path(config_dir).absolute()
        if not extra.is_dir():
            raise ConfigError(f"--config-dir: no folder {str(config_dir)!r}; give an existing folder of YAML groups")
        path.prepend("command line", f"{FILES}://{extra}", SearchPathQuery(provider="schema"))
    return path


def checked(config: DictConfig, *, missing_allowed: bool = False) -> Config:
    """A composed configuration, resolved, typed and checked: what `framework.api.run` takes.

    Args:
        missing_allowed: leave out keys that have no value yet, to show a configuration that cannot be run.

    Raises:
        ConfigError and what `config.check.parse` raises.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=not missing_allowed)
    except MissingMandatoryValue as error:
        key = error.full_key or str(error)
        raise ConfigError(f"{key} has no value; set {key}=...") from error
    except OmegaConfBaseException as error:
        raise ConfigError(with_key(str(error))) from error
    assert isinstance(plain, dict)
    for group in GROUPS:
        if plain.get(group) is None:
            raise ConfigError(f"{group} has no choice; set {group}=NAME")
    return parse({str(key): value for key, value in plain.items()})
