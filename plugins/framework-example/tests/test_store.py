"""Zipped keeps every promise of a store."""

from __future__ import annotations

from typing import Any

import pytest
from framework.errors import ConfigError
from framework_testing import store_checks

from framework_example.store import Zipped


@pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(Zipped)


def test_a_level_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 to 9"):
        Zipped(level=10)
