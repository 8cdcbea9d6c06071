"""Description of a trace: counts, lengths, sharing, and what no cache could exceed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framework.interfaces.workload import Namespace, WorkloadRequest
from framework_cache_only.paths import Ints, RequestPaths, build_paths
from framework_cache_only.stack import lru_curve, reuse_distances
from framework_workloads.trace.reader import Trace

_CURVE_POINTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token lengths of one kind over all requests."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the block ids say.

    Attributes:
        hit_rate_*: of a cache that never evicts, by tokens, by blocks, by full blocks only, and as the mean of the
            requests' own rates by block.
        median_reuse_blocks: the LRU capacity at which half of the reused references hit.
        lru_curve: (capacity in blocks, hit rate by block) at fractions of the working set.
    """

    block_tokens: int
    references: int
    unique_blocks: int
    longest_blocks: int
    hit_rate_by_tokens: float
    hit_rate_by_blocks: float
    hit_rate_full_blocks: float
    hit_rate_mean_per_request: float
    median_reuse_blocks: int
    lru_curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """Everything `describe` prints.

    Attributes:
        unknown_outputs: requests whose answer's length the trace does not say; they are not in `output_tokens`.
        output_tokens: None where no request's is known.
        sharing: None for a trace of lengths only.
    """

    path: str
    format: str
    requests: int
    skipped: int
    duration_s: float
    requests_per_s: float
    sessions: int
    scopes: int
    input_tokens: Lengths
    output_tokens: Lengths | None
    unknown_outputs: int
    sharing: Sharing | None


class _Tally:
    """Collects what a pass over the requests shows; 16 bytes a request."""

    def __init__(self) -> None:
        self.inputs, self.outputs = array("q"), array("q")
        self.sessions: set[str] = set()
        self.scopes: set[Namespace] = set()
        self.first_s: float | None = None
        self.last_s = 0.0

    def watch(self, requests: Iterable[WorkloadRequest]) -> Iterator[WorkloadRequest]:
        for request in requests:
            self.inputs.append(request.input_tokens)
            if request.output_tokens is not None:
                self.outputs.append(request.output_tokens)
            if request.session is not None:
                self.sessions.add(request.session)
            self.scopes.add(request.namespace.root)
            self.first_s = request.arrival_s if self.first_s is None else self.first_s
            self.last_s = request.arrival_s
            yield request


def describe(trace: Trace) -> tuple[TraceDescription, Ints | None]:
    """The description, and the reuse distance of every block reference (None for lengths only). Two passes.

    Raises:
        WorkloadError: a line that cannot be read, or no request at all.
    """
    tally, paths = _Tally(), None
    if trace.block_tokens:
        paths = build_paths(tally.watch(trace))
    else:
        for _ in tally.watch(trace):
            pass
    duration = tally.last_s - (tally.first_s or 0.0)
    distances = reuse_distances(paths) if paths is not None else None
    description = TraceDescription(
        path=str(trace.path),
        format=trace.format,
        requests=len(tally.inputs),
        skipped=trace.num_skipped,
        duration_s=duration,
        requests_per_s=len(tally.inputs) / duration if duration else 0.0,
        sessions=len(tally.sessions),
        scopes=len(tally.scopes),
        input_tokens=_lengths(tally.inputs),
        output_tokens=_lengths(tally.outputs) if tally.outputs else None,
        unknown_outputs=len(tally.inputs) - len(tally.outputs),
        sharing=_sharing(trace, paths, distances) if paths is not None and distances is not None else None,
    )
    return description, distances


def _lengths(values: array[int]) -> Lengths:
    lengths: npt.NDArray[np.int64] = np.frombuffer(values, dtype=np.int64)
    p50, p90, p99 = (float(value) for value in np.percentile(lengths, (50, 90, 99)))
    return Lengths(int(lengths.sum()), float(lengths.mean()), p50, p90, p99, int(lengths.max()))


def _sharing(trace: Trace, paths: RequestPaths, distances: Ints) -> Sharing:
    full = build_paths(trace, full_blocks_only=True)
    counts = np.diff(paths.starts)
    capacities = sorted({max(1, round(paths.num_nodes * part)) for part in _CURVE_POINTS})
    finite = distances[distances > 0]
    references = max(1, paths.num_references)
    return Sharing(
        block_tokens=paths.block_tokens,
        references=paths.num_references,
        unique_blocks=paths.num_nodes,
        longest_blocks=int(counts.max(initial=0)),
        hit_rate_by_tokens=float(paths.hit_tokens(paths.infinite_hits).sum() / paths.input_tokens.sum()),
        hit_rate_by_blocks=float(paths.infinite_hits.sum() / references),
        hit_rate_full_blocks=float(full.infinite_hits.sum() / max(1, full.num_references)),
        hit_rate_mean_per_request=float((paths.infinite_hits / np.maximum(1, counts)).mean()),
        median_reuse_blocks=int(np.median(finite)) if len(finite) else 0,
        lru_curve=tuple(
            zip(capacities, (n / references for n in lru_curve(paths, capacities, distances)), strict=True)
        ),
    )
