"""Fitting counts as the framework does."""

from __future__ import annotations

from typing import Any

import pytest
from framework_testing import replay_core_checks

from framework_example.replay_core import Fitting


@pytest.mark.parametrize("check", replay_core_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(Fitting)
