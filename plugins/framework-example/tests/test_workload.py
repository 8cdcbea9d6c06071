"""SharedQuestions keeps every promise of a workload."""

from __future__ import annotations

from typing import Any

import pytest
from framework_testing import workload_checks

from framework_example.workload import SharedQuestions


@pytest.mark.parametrize("check", workload_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(SharedQuestions)


def test_all_requests_share_the_text() -> None:
    first, second = list(SharedQuestions(num_requests=2).requests())
    assert first.tokens is not None
    assert second.tokens is not None
    assert first.tokens[:64].tolist() == second.tokens[:64].tolist()
