"""Arrivals have the mean and the burstiness asked for, or come from a trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_workloads import drawn

from framework.errors import ConfigError, WorkloadError
from framework.workload import build
from framework.workload.traces import TraceRequest, write_trace


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_burstiness_asked_for(burstiness: float) -> None:
    options = {"num_requests": 2500, "rate_per_s": 5.0, "burstiness": burstiness, "system_tokens": 0, "user_tokens": 1}
    gaps = np.diff([r.arrival_s for r in drawn("system_prompts", **options)])
    assert gaps.mean() == pytest.approx(0.2, rel=0.15), gaps.mean()
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.15, abs=1e-9), gaps.std() / gaps.mean()


def test_arrivals_may_come_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    times = [5.0, 5.0, 6.5, 9.0]
    write_trace(path, [TraceRequest(arrival_s=t, input_tokens=1, output_tokens=1) for t in times])
    requests = drawn("rag", num_requests=4, arrivals=str(path))
    assert [r.arrival_s for r in requests] == [0.0, 0.0, 1.5, 4.0]
    with pytest.raises(WorkloadError, match="has 4 arrivals, fewer than"):
        build("rag", {"num_requests": 5, "arrivals": str(path)})
    with pytest.raises(ConfigError, match=r"rate_per_s .* must be 0"):
        build("rag", {"rate_per_s": 1.0, "arrivals": str(path)})
