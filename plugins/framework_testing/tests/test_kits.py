"""Every kind of plugin that others write has a kit and a template."""

from __future__ import annotations

from importlib.resources import files

import pytest

import framework_testing as testing
from framework import registry


@pytest.mark.parametrize("kind", registry.kinds(with_kit=True))
def test_a_kind_has_a_kit_and_templates(kind: str) -> None:
    assert getattr(testing, f"{kind}_checks")
    for template in ("plugin.py.tmpl", "tests.py.tmpl"):
        assert (files(registry.kind_of(kind).kit) / "templates" / kind / template).is_file(), template
