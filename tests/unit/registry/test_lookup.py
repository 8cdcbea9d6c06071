"""A class that is not installed is chosen by its place: `FILE.py:CLASS` or `MODULE:CLASS`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from framework import registry
from framework.errors import InvalidPlugin, PluginImportError, UnknownPlugin
from framework.guard.boundary import origin_of
from framework.registry.lookup import NOT_INSTALLED, located

PLUGIN = '''
from framework.interfaces.eviction import ScoredPolicy

class Mine(ScoredPolicy):
    """Mine."""
    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
    def score(self, block, now):
        return self.weight * block.last_access

class NoPolicy: ...
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "policy_of_a_test.py"
    path.write_text(PLUGIN)
    sys.modules.pop(path.stem, None)
    return path


def test_a_class_in_a_file_is_found_checked_and_built(file: Path) -> None:
    name = f"{file}:Mine"
    assert registry.find("eviction", name).distribution == NOT_INSTALLED
    assert registry.check_options("eviction", name, {"weight": 2}) == {"weight": 2.0}
    assert registry.build("eviction", name, {"weight": 2}).weight == 2.0
    assert origin_of(registry.load("eviction", name)) == str(file)  # what an error of the plugin begins with
    assert registry.load("eviction", f"{file.stem}:Mine") is registry.load("eviction", name)


def test_what_is_wrong_with_a_place_is_said(file: Path) -> None:
    with pytest.raises(PluginImportError, match=r"no file .*nowhere\.py"):
        registry.load("eviction", f"{file.parent}/nowhere.py:Mine")
    with pytest.raises(PluginImportError, match="has no attribute 'Other'"):
        registry.load("eviction", f"{file}:Other")
    with pytest.raises(InvalidPlugin, match="not a subclass of EvictionPolicy"):
        registry.load("eviction", f"{file}:NoPolicy")
    with pytest.raises(InvalidPlugin, match="not a subclass of HashScheme"):
        registry.load("hash", f"{file}:Mine")


def test_a_file_named_like_another_module_is_refused_not_confused(file: Path) -> None:
    taken = file.with_name("random.py")
    taken.write_text(PLUGIN)
    with pytest.raises(PluginImportError, match=r"another module is named 'random': rename random\.py"):
        registry.load("eviction", f"{taken}:Mine")


def test_names_that_are_no_places_are_unknown_plugins() -> None:
    for name in ("lruu", "nobody:lru", ":Mine", "a b:Mine"):
        assert located("eviction", name) is None, name
        with pytest.raises(UnknownPlugin):
            registry.find("eviction", name)
    assert registry.find("eviction", "kvcache-framework:lru").name == "lru"
