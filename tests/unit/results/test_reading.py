"""framework.results.reading: when a run that ended is a failure all the same."""

from __future__ import annotations

from typing import Any

import pytest

from framework.results.reading import what_went_wrong


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"num_finished": 3}, ""),
        ({"num_finished": 3, "num_rejected": 2}, ""),
        ({"num_finished": 0, "num_cancelled": 1, "num_rejected": 2}, ""),
        ({"num_finished": 0, "num_rejected": 2}, "all 2 requests were rejected"),
        ({"num_finished": 1, "num_failed": 2, "first_failure": "no room"}, "2 requests failed (the first: no room)"),
        ({"num_finished": 1, "first_failure": "acme: Odd.facts"}, "a plugin failed: acme: Odd.facts"),
        ({"num_finished": 1, "loss_exceeded": 1, "attention_error_declared": "x"}, "declared 'x'"),
        ({"status": "interrupted", "reasons": ["SIGTERM"]}, "SIGTERM"),
        ({"status": "failed_requests", "num_failed": 2}, "2 requests failed"),
        ({"status": "failed_requests"}, "the run's status is 'failed_requests'"),
    ],
)
def test_a_run_that_served_nothing_is_a_failure(result: dict[str, Any], said: str) -> None:
    found = what_went_wrong(result)
    assert said in found, found
    assert bool(found) == bool(said)
    assert found.count("status") == said.count("status") + (result.get("status") == "interrupted"), "said once"
