"""A kind of plugin is one line of data: base class, kit and templates follow from its name."""

from __future__ import annotations

from importlib.resources import files

import pytest

import framework_testing as testing
from framework import registry
from framework.errors import ConfigError


@pytest.mark.parametrize("kind", registry.kinds())
def test_every_kind_has_a_base_class_a_kit_and_templates(kind: str) -> None:
    assert isinstance(registry.interface_of(kind), type)
    assert registry.interface_of(kind).__module__.startswith("framework.interfaces."), "all that a plugin may import"
    assert getattr(testing, f"{kind}_checks")
    for template in ("plugin.py.tmpl", "tests.py.tmpl"):
        assert (files("framework_testing.new") / "templates" / kind / template).is_file(), template


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'eviction'"):
        registry.interface_of("evictions")


def test_groups_are_the_kinds_that_a_configuration_chooses_from() -> None:
    assert set(registry.groups()) <= set(registry.kinds())
    assert {"allocator", "eviction", "hash", "backend"} <= set(registry.groups())
