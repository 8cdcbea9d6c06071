"""What every seeded stream has in common: its options checked, its draws, its times of arrival."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from framework.errors import ConfigError, WorkloadError
from framework.interfaces.workload import Sampling, Workload
from framework.workload.draws import Draws, at_least, need


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


@dataclass(kw_only=True)
class SeededWorkload(Workload):
    """Requests drawn from a seed, one at a time.

    Args:
        seed: of all that is drawn.
        output_tokens: mean length of an answer.
        spread: of all lengths, sigma of their log; 0 makes them equal.
        vocab_size: token ids are drawn from 0 to this.
        temperature: 0 is greedy.
        rate_per_s, burstiness, arrivals: see framework.workload.arrivals.

    Raises:
        ConfigError: a number outside its range.
    """

    name: ClassVar[str]

    seed: int = 0
    output_tokens: int = 24
    spread: float = 0.5
    vocab_size: int = 256
    temperature: float = 0.0
    rate_per_s: float = 0.0
    burstiness: float = 1.0
    arrivals: Path | None = None

    def __post_init__(self) -> None:
        at_least(self.name, 1, output_tokens=self.output_tokens)
        need(self.name, "spread", self.spread, 0, 3)
        need(self.name, "vocab_size", self.vocab_size, 2, 2**30)
        at_least(self.name, 0, temperature=self.temperature)
        check_arrivals(self.name, self.rate_per_s, self.burstiness, self.arrivals)

    def at_least(self, low: float, *options: str) -> None:
        """Each of these options of mine is `low` or more."""
        at_least(self.name, low, **{option: getattr(self, option) for option in options})

    def opening(self) -> tuple[Draws, Iterator[float]]:
        """The draws and the arrival times, these from a stream of their own: the rate changes when requests come, not
        what they are."""
        draws = Draws(self.name, self.seed, vocab_size=self.vocab_size, spread=self.spread)
        own = draws.child("arrivals", 0).random
        times = arrival_times(own, rate_per_s=self.rate_per_s, burstiness=self.burstiness, arrivals=self.arrivals)
        return draws, times

    def answer(self, num_tokens: int) -> Sampling:
        """How a drawn request is answered: with exactly as many tokens."""
        return Sampling(max_tokens=num_tokens, temperature=self.temperature, ignore_eos=True)
