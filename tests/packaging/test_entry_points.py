"""The installed metadata says what pyproject.toml says: after editing it, install again."""

from __future__ import annotations

import importlib.metadata
import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

from framework import registry
from framework.config.config import conf_folder


@pytest.fixture(scope="module")
def project(repository: Path) -> Any:
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("kind", registry.kinds())
def test_the_installed_plugins_are_those_of_pyproject(kind: str, project: Any) -> None:
    written = project["entry-points"].get(f"framework.{kind}", {})
    installed = {
        plugin.name: plugin.value for plugin in registry.entries(kind) if plugin.distribution == project["name"]
    }
    assert installed == written, "pip install -e . again"


def test_the_console_script_is_main(project: Any) -> None:
    scripts = {point.name: point.value for point in importlib.metadata.entry_points(group="console_scripts")}
    assert scripts["kvcache-framework"] == project["scripts"]["kvcache-framework"] == "framework.run:main"


@pytest.mark.parametrize(
    "plugin",
    [plugin for kind in registry.kinds() for plugin in registry.entries(kind)],
    ids=lambda p: f"{p.kind}-{p.name}",
)
def test_every_installed_plugin_loads_and_its_summary_is_its_docstring(plugin: registry.Plugin) -> None:
    cls = registry.load(plugin.kind, plugin.name)
    source = registry.read_source(plugin)
    doc = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    assert doc.startswith(source.summary), source
    assert source.summary.endswith((".", "!", "?")), f"--help shows whole sentences: {source.summary}"
    assert [word.partition("=")[0] for word in source.options] == registry.own_options(cls).names(), source


def test_the_conf_folder_lies_beside_the_package(repository: Path) -> None:
    assert conf_folder() in (repository / "conf", Path(inspect.getfile(registry)).parents[1] / "conf")
