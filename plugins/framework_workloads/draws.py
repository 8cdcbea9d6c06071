"""Seeded draws of a synthetic workload: lengths, popularity, contents, times. The same in any process, on any platform.

Scalars come from `random.Random` under a text seed (hashed by SHA-512), token ids from the raw bits of a PCG64: both
streams are promised never to change, which NumPy's distributions are not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError, WorkloadError, shown
from framework.interfaces.workload import Sampling, Workload, WorkloadRequest
from framework.types import TokenArray

MOST = 10**7
"""Requests, sessions, tokens or whatever else a synthetic workload counts: all of it is drawn."""


class Draws:
    """One seeded stream. Streams of different names, or children of different numbers, are unrelated.

    Args:
        name: of the stream; with the seed it decides everything drawn.
        seed: of the run.
        vocab_size: token ids are drawn from 0 to this.
        spread: sigma of the log of a length: 0 makes every length its mean, 0.5 a tail of a few times the mean.
    """

    def __init__(self, name: str, seed: int, *, vocab_size: int, spread: float) -> None:
        self._name, self._seed, self.vocab_size, self.spread = name, seed, vocab_size, spread
        self.random = random.Random(f"framework.workload.{name}:{seed}")

    def child(self, kind: str, number: int) -> Draws:
        """The stream of one document, session or prompt: the same however often and in whatever order it is asked."""
        return Draws(f"{self._name}.{kind}.{number}", self._seed, vocab_size=self.vocab_size, spread=self.spread)

    def length(self, mean: float) -> int:
        """A log-normal length of this mean, at least 1."""
        if not self.spread:
            return max(1, round(mean))
        return max(1, round(mean * math.exp(self.spread * self.random.gauss(0.0, 1.0) - self.spread**2 / 2)))

    def count(self, mean: float) -> int:
        """A geometric count of this mean, at least 1: each further one comes with the same chance."""
        if mean <= 1:
            return 1
        return 1 + int(math.log(1.0 - self.random.random()) / math.log1p(-1.0 / mean))

    def pause(self, mean_s: float) -> float:
        """An exponential waiting time, seconds; 0 for a mean of 0."""
        return self.random.expovariate(1.0 / mean_s) if mean_s > 0 else 0.0

    def tokens(self, count: int) -> TokenArray:
        """(count,) int32 fresh token ids."""
        bits = np.random.PCG64(self.random.getrandbits(64)).random_raw(count)
        ids: TokenArray = (bits % np.uint64(self.vocab_size)).astype(np.int32)
        return ids

    def text(self, mean: float) -> TokenArray:
        """Token ids of a length drawn around `mean`; none for a mean of 0."""
        return self.tokens(self.length(mean) if mean > 0 else 0)


class Zipf:
    """Popularity by rank: number k of `size` is drawn with a chance proportional to (k + 1) ** -alpha.

    alpha 0 is uniform, 1 the classic law. O(log size) a draw, 8 bytes a number.
    """

    def __init__(self, size: int, alpha: float) -> None:
        weights = np.arange(1, size + 1, dtype=np.float64) ** -alpha
        self._sums: npt.NDArray[np.float64] = np.cumsum(weights)

    def draw(self, rng: random.Random) -> int:
        """A number, 0 the most popular."""
        index = np.searchsorted(self._sums, rng.random() * self._sums[-1], side="right")
        return min(int(index), len(self._sums) - 1)

    def distinct(self, rng: random.Random, count: int) -> list[int]:
        """`count` different numbers, in the order drawn; `count` is at most the size. Where the law is so steep that
        rare ones would take for ever, the most popular of the rest come last.
        """
        drawn: dict[int, None] = {}
        for _ in range(64 * count):
            drawn[self.draw(rng)] = None
            if len(drawn) == count:
                return list(drawn)
        rest = (number for number in range(len(self._sums)) if number not in drawn)
        return [*drawn, *islice(rest, count - len(drawn))]


class _Named(Protocol):
    name: ClassVar[str]


def within(workload: _Named, low: float, high: float, *options: str) -> None:
    """Each of these options of a workload is within `low` to `high`.

    Raises:
        ConfigError: one is not.
    """
    for option in options:
        value = getattr(workload, option)
        if not low <= value <= high:
            raise ConfigError(f"workload.{option} ({workload.name}) must be {low} to {high}, found {shown(value)}")


@dataclass(kw_only=True)
class SeededWorkload(Workload):
    """Requests drawn from a seed, one at a time.

    Args:
        seed: of all that is drawn.
        output_tokens: mean length of an answer.
        spread: of all lengths, sigma of their log; 0 makes them equal.
        vocab_size: token ids are drawn from 0 to this.
        temperature: 0 is greedy.
        rate_per_s: mean arrivals a second; 0 is all at once.
        burstiness: standard deviation over mean of the gaps: 0 even, 1 Poisson, above 1 bursts. Gaps are
            gamma-distributed with shape burstiness ** -2.
        arrivals: take the times of this trace instead, in any format that `workload=trace` reads.

    Raises:
        ConfigError: a number outside its range, or both a rate and a trace of arrivals.
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
        within(self, 1, MOST, "output_tokens")
        within(self, 0, 3, "spread")
        within(self, 2, 2**30, "vocab_size")
        within(self, 0, MOST, "temperature", "rate_per_s", "burstiness")
        if self.arrivals is not None and self.rate_per_s:
            raise ConfigError(f"workload.rate_per_s ({self.name}) must be 0 where workload.arrivals gives the times")

    def opening(self) -> tuple[Draws, Iterator[float]]:
        """The draws, and the arrival times: seconds, without end (a trace's as many as it has), the first at 0.

        Times are a stream of their own: the rate changes when requests come, not what they are.

        Raises:
            WorkloadError: the trace cannot be read, or (while iterating) has no more requests.
        """
        draws = Draws(self.name, self.seed, vocab_size=self.vocab_size, spread=self.spread)
        return draws, self._gaps(draws.child("arrivals", 0).random) if self.arrivals is None else _recorded(
            self.arrivals
        )

    def _gaps(self, rng: random.Random) -> Iterator[float]:
        if not self.rate_per_s:
            yield from repeat(0.0)
        now_s, mean_s, shape = 0.0, 1.0 / self.rate_per_s, self.burstiness**-2 if self.burstiness else 0.0
        while True:
            yield now_s
            now_s += rng.gammavariate(shape, mean_s / shape) if shape else mean_s

    def request(self, prompt: TokenArray, output: TokenArray, arrival_s: float, **facts: Any) -> WorkloadRequest:
        """A drawn request, answered with exactly as many tokens as `output` has."""
        sampling = Sampling(max_tokens=len(output), temperature=self.temperature, ignore_eos=True)
        return WorkloadRequest(
            **{"prompt": prompt, "output": output, "sampling": sampling, "arrival_s": arrival_s, **facts}
        )


def _recorded(path: Path) -> Iterator[float]:
    from framework_workloads.trace import open_trace

    trace = open_trace(path)

    def times() -> Iterator[float]:
        first = None
        for request in trace:
            first = request.arrival_s if first is None else first
            yield request.arrival_s - first
        raise WorkloadError(f"{path} has {trace.num_requests} arrivals, fewer than the workload asks for")

    return times()
