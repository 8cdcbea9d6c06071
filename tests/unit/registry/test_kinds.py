"""A kind of plugin is one line of data: what it is called, and its base class."""

from __future__ import annotations

import pytest

from framework import registry
from framework.errors import ConfigError


@pytest.mark.parametrize("kind", registry.kinds())
def test_every_kind_has_a_base_class_among_the_interfaces(kind: str) -> None:
    assert isinstance(registry.interface_of(kind), type)
    assert registry.interface_of(kind).__module__.startswith("framework.interfaces."), "all that a plugin may import"


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'eviction'"):
        registry.interface_of("evictions")


def test_groups_are_the_kinds_that_a_configuration_chooses_from() -> None:
    assert set(registry.groups()) <= set(registry.kinds())
    assert {"allocator", "eviction", "hash", "backend"} <= set(registry.groups())
