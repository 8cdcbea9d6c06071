"""From overrides to one checked configuration, as the command line composes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import version
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from framework.config.check import parse
from framework.config.config import GROUPS, Config
from framework.config.defaults import conf_folder
from framework.config.hydra import source
from framework.config.hydra.overrides import check_choices, groups_of, normalise
from framework.config.hydra.sentences import HYDRA_ERRORS, as_config_error, with_key
from framework.errors import ConfigError

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


def create_hydra(path: ConfigSearchPath, name: str = "kvlab") -> Hydra:
    """A Hydra over this search path, installed as the global one."""
    GlobalHydra.instance().clear()
    return Hydra.create_main_hydra2(task_name=name, config_search_path=path)


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
    source.register()
    path = create_config_search_path(f"{source.FILES}://{folder}")
    assert isinstance(path, ConfigSearchPathImpl)
    for element in path.get_path():
        if element.path == source.EVERY and importable_only:
            element.path = source.IMPORTABLE
    if config_dir is not None:
        extra = Path(config_dir).absolute()
        if not extra.is_dir():
            raise ConfigError(f"--config-dir: no folder {str(config_dir)!r}; give an existing folder of YAML groups")
        path.prepend("command line", f"{source.FILES}://{extra}", SearchPathQuery(provider="schema"))
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
