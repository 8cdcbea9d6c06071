"""What every synthetic workload begins with: its options checked, its stream of draws, its times of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from framework.workload.arrivals import arrival_times
from framework.workload.draws import Draws, at_least, need


def opening(
    workload: str,
    *,
    seed: int,
    output_tokens: int,
    spread: float,
    vocab_size: int,
    rate_per_s: float,
    burstiness: float,
    arrivals: Path | None,
) -> tuple[Draws, Iterator[float]]:
    """The draws of `workload` and its arrival times, from a stream of their own: the rate changes when requests come,
    not what they are.

    Raises:
        ConfigError: a number outside its range.
        WorkloadError: the trace of arrivals cannot be read.
    """
    at_least(workload, 1, output_tokens=output_tokens)
    need(workload, "spread", spread, 0, 3)
    need(workload, "vocab_size", vocab_size, 2, 2**30)
    draws = Draws(workload, seed, vocab_size=vocab_size, spread=spread)
    own = draws.child("arrivals", 0).random
    times = arrival_times(workload, own, rate_per_s=rate_per_s, burstiness=burstiness, arrivals=arrivals)
    return draws, times
