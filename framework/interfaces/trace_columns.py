"""All requests of a trace at once, in arrays."""

# Shapes: R requests  N runs of block ids of all requests

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class TraceColumns:
    """What a cache-only replay reads of a trace's requests, a column a field; see WorkloadRequest.

    Attributes:
        arrival_s: (R,) float64, finite, at least 0.
        input_tokens: (R,) int64, at least 1.
        run_starts: (R + 1,) int64, request i's blocks are the runs `run_starts[i]` to `run_starts[i + 1]`, in order.
        firsts, counts: (N,) int64, each run is `counts` consecutive block ids from `firsts` on, at least one; counts
            None: one each.
        salts, tenants, sessions, categories, turns, output_tokens: R long; None where no request has one. Salts are
            the namespaces'.
    """

    arrival_s: npt.NDArray[np.float64]
    input_tokens: npt.NDArray[np.int64]
    run_starts: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64] | None = None
    salts: list[str] | None = None
    tenants: list[str] | None = None
    sessions: list[str | None] | None = None
    categories: list[str | None] | None = None
    turns: list[int | None] | None = None
    output_tokens: list[int | None] | None = None

    @property
    def block_starts(self) -> npt.NDArray[np.int64]:
        """(R + 1,) int64, where each request's blocks begin among those of all."""
        if self.counts is None:
            return self.run_starts
        ends = np.concatenate(([0], np.cumsum(self.counts)))
        starts: npt.NDArray[np.int64] = ends[self.run_starts]
        return starts
