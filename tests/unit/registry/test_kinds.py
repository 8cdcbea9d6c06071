"""A kind of plugin is one line of data: what it is called, and its base class."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework import registry
from framework.errors import ConfigError


@pytest.mark.parametrize("kind", registry.groups())
def test_every_kind_that_a_configuration_chooses_has_a_base_class_among_the_interfaces(kind: str) -> None:
    assert isinstance(registry.interface_of(kind), type)
    assert registry.interface_of(kind).__module__.startswith("framework.interfaces."), "all that a plugin may import"


def test_a_package_opens_kinds_by_entry_points_and_a_wrong_one_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "orders-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orders\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[framework.kind]\nordering = orders_made:ORDERING\neviction = orders_made:EVICTION\nnone = orders_made:NONE\n"
        "[framework.ordering]\nfirst = orders_made:First\n"
    )
    (tmp_path / "orders_made.py").write_text(
        "from framework.registry import Kind\n\n\nclass Order: ...\n\n\nclass First(Order): ...\n\n\n"
        "ORDERING = Kind('ordering', 'orders_made:Order', is_group=False, chosen='engine.order={name}', kit='')\n"
        "EVICTION = Kind('eviction', 'orders_made:Order', is_group=False)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "ordering" in registry.kinds()
    assert "ordering" not in (*registry.groups(), *registry.kinds(with_kit=True))
    assert registry.load("ordering", "first").__name__ == "First"
    assert registry.interface_of("eviction").__module__ == "framework.interfaces.eviction"
    said = capsys.readouterr().err
    assert "skipped: kind 'eviction' of orders 1.5: must be a new Kind" in said
    assert "skipped: kind 'none' of orders 1.5: AttributeError: " in said


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'eviction'"):
        registry.interface_of("evictions")


def test_groups_are_the_kinds_that_a_configuration_chooses_from() -> None:
    assert set(registry.groups()) <= set(registry.kinds())
    assert {"allocator", "eviction", "hash", "backend"} <= set(registry.groups())
