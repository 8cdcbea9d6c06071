"""Keyed keeps every promise of a hash scheme, and its names depend on the secret."""

from __future__ import annotations

from typing import Any

import pytest
from framework.types import Namespace
from framework_testing import hash_checks

from framework_example.hash import Keyed


@pytest.mark.parametrize("check", hash_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(Keyed)


def test_another_secret_gives_other_names() -> None:
    names = {Keyed(secret=secret).root(Namespace(), 16) for secret in ("", "a", "b")}
    assert len(names) == 3, names
