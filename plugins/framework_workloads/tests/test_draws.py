"""What synthetic workloads draw from: popularity, distinct choices, lengths, arrivals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from synthetic_workloads import drawn

from framework.errors import ConfigError, WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework.workload import build
from framework_traces.writing import write_trace
from framework_workloads.draws import Draws, Zipf


def test_popularity_follows_zipf() -> None:
    requests = drawn(
        "system_prompts", num_requests=4000, num_prompts=10, zipf_alpha=1.0, system_tokens=4, user_tokens=1
    )
    counts = Counter(r.tenant for r in requests)
    harmonic = sum(1 / k for k in range(1, 11))
    for k in range(10):
        expected = 4000 / ((k + 1) * harmonic)
        assert counts[f"application-{k}"] == pytest.approx(expected, rel=0.15), (k, counts)
    uniform = Counter(r.tenant for r in drawn("system_prompts", num_requests=4000, num_prompts=4, zipf_alpha=0.0))
    assert max(uniform.values()) < 1.2 * min(uniform.values()), uniform


@pytest.mark.parametrize(("size", "count", "alpha"), [(50, 5, 1.0), (50, 5, 40.0), (8, 8, 0.0), (8, 6, 300.0)])
def test_distinct_draws_are_distinct_and_as_many_as_asked(size: int, count: int, alpha: float) -> None:
    draws, law = Draws("test", 0, vocab_size=2, spread=0.0), Zipf(size, alpha)
    for _ in range(20):
        found = law.distinct(draws.random, count)
        assert len(found) == len(set(found)) == count, found
        assert set(found) <= set(range(size)), found


def test_lengths_have_the_mean_asked_for_and_no_spread_makes_them_equal() -> None:
    options = {"num_requests": 3000, "system_tokens": 0, "user_tokens": 60, "output_tokens": 20}
    requests = drawn("system_prompts", **options)
    assert np.mean([len(r.tokens) for r in requests]) == pytest.approx(60, rel=0.05)
    assert np.mean([len(r.output) for r in requests]) == pytest.approx(20, rel=0.05)
    even = drawn("system_prompts", **{**options, "num_requests": 20, "spread": 0.0})
    assert {(len(r.tokens), len(r.output), r.sampling.max_tokens) for r in even} == {(60, 20, 20)}


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_burstiness_asked_for(burstiness: float) -> None:
    options = {"num_requests": 2500, "rate_per_s": 5.0, "burstiness": burstiness, "system_tokens": 0, "user_tokens": 1}
    gaps = np.diff([r.arrival_s for r in drawn("system_prompts", **options)])
    assert gaps.mean() == pytest.approx(0.2, rel=0.15), gaps.mean()
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.15, abs=1e-9), gaps.std() / gaps.mean()


def test_arrivals_may_come_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    times = [5.0, 5.0, 6.5, 9.0]
    write_trace(path, [WorkloadRequest(arrival_s=t, input_tokens=1, output_tokens=1) for t in times])
    requests = drawn("rag", num_requests=4, arrivals=str(path))
    assert [r.arrival_s for r in requests] == [0.0, 0.0, 1.5, 4.0]
    with pytest.raises(WorkloadError, match="has 4 arrivals, fewer than"):
        build("rag", {"num_requests": 5, "arrivals": str(path)})
    with pytest.raises(ConfigError, match=r"rate_per_s .* must be 0"):
        build("rag", {"rate_per_s": 1.0, "arrivals": str(path)})
