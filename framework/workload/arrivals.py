"""When requests come: Poisson, bursty or even gaps, or the recorded times of a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from framework.errors import ConfigError, WorkloadError
from framework.workload.draws import need


def check_arrivals(workload: str, rate_per_s: float, burstiness: float, arrivals: Path | None) -> None:
    """Whether times can be drawn so; `workload` is named in errors.

    Raises:
        ConfigError: a number out of range, or both a rate and a trace.
    """
    need(workload, "rate_per_s", rate_per_s, 0)
    need(workload, "burstiness", burstiness, 0)
    if arrivals is not None and rate_per_s:
        raise ConfigError(f"workload.rate_per_s ({workload}) must be 0 where workload.arrivals gives the times")


def arrival_times(
    rng: random.Random, *, rate_per_s: float, burstiness: float, arrivals: Path | None
) -> Iterator[float]:
    """Seconds since the start, without end (a trace's as many as it has), non-decreasing, the first at 0.

    Args:
        rate_per_s: mean arrivals a second; 0 is all at once.
        burstiness: standard deviation over mean of the gaps: 0 even, 1 Poisson, above 1 bursts. Gaps are
            gamma-distributed with shape burstiness ** -2.
        arrivals: take the times of this trace instead, in any format that `framework.trace` reads.

    Raises:
        WorkloadError: the trace cannot be read, or (while iterating) has no more requests.
    """
    return _recorded(arrivals) if arrivals is not None else _renewals(rng, rate_per_s, burstiness)


def _renewals(rng: random.Random, rate_per_s: float, burstiness: float) -> Iterator[float]:
    now_s, shape = 0.0, burstiness**-2 if burstiness else 0.0
    while True:
        yield now_s
        if not rate_per_s:
            continue
        mean_s = 1.0 / rate_per_s
        now_s += rng.gammavariate(shape, mean_s / shape) if shape else mean_s


def _recorded(path: Path) -> Iterator[float]:
    from framework.workload.traces import open_trace

    trace = open_trace(path)

    def times() -> Iterator[float]:
        first = None
        for request in trace:
            first = request.arrival_s if first is None else first
            yield request.arrival_s - first
        raise WorkloadError(f"{path} has {trace.num_requests} arrivals, fewer than the workload asks for")

    return times()
