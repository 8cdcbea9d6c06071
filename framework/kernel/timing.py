"""The duration of calls: wall clock on a CPU, events around CUDA graphs on a GPU; several calls interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

Call = Callable[[int], None]
"""Does the work once; the argument is the turn, counted up, which chooses among rotated buffers."""

_WARM_UP_ROUNDS, _MIN_ROUNDS, _MAX_ROUNDS = 2, 5, 400
_GRAPH_CALLS = 20


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a call, by sample; `method` says how they were taken."""

    samples: tuple[float, ...]
    method: str

    @property
    def median_s(self) -> float:
        """Half of the samples took at most this."""
        return float(np.median(self.samples))

    @property
    def min_s(self) -> float:
        """The best sample."""
        return min(self.samples)


def time_on_cpu(calls: Mapping[str, Call], budget_s: float) -> dict[str, Times]:
    """Wall clock of each call, the calls in turn, so that a noisy second hurts all alike.

    Two rounds warm up; then rounds until the budget is spent, at least 5. Once one call alone has taken longer than
    the budget, its round is the last and counts, a first one as well.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = 0.0
    for turn in range(_WARM_UP_ROUNDS + _MAX_ROUNDS):
        if turn == _WARM_UP_ROUNDS:
            end = time.perf_counter() + budget_s
        taken = {name: _seconds(call, turn) for name, call in calls.items()}
        too_slow = max(taken.values()) > budget_s
        if turn >= _WARM_UP_ROUNDS or too_slow:
            for name, seconds in taken.items():
                samples[name].append(seconds)
        enough = turn >= _WARM_UP_ROUNDS + _MIN_ROUNDS - 1 and time.perf_counter() > end
        if too_slow or enough:
            break
    return {name: Times(tuple(values), "wall clock") for name, values in samples.items()}


def _seconds(call: Call, turn: int) -> float:
    start = time.perf_counter()
    call(turn)
    return time.perf_counter() - start


def time_on_cuda(call: Call, budget_s: float, *, num_turns: int, graph: bool) -> Times:
    """CUDA events around replays of a graph of whole rounds of turns, or around plain calls where `graph` is False.

    Plain calls are launched without waiting: what the host needs a call shows where it is slower than the device. They
    also stand in where the capture fails, and `method` says why it did.

    Args:
        num_turns: buffers that the call rotates over.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles and allocates before the capture
        call(0)
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(1)
        torch.cuda.synchronize()
        once_s = time.perf_counter() - start
    torch.cuda.current_stream().wait_stream(side)
    if once_s > budget_s:
        return Times((once_s,), "wall clock, one call")
    affordable = int(budget_s / _MIN_ROUNDS / once_s)  # a slow call is repeated less often within a sample
    calls = num_turns * max(1, min(-(-_GRAPH_CALLS // num_turns), affordable // num_turns))

    def run() -> None:
        for turn in range(calls):
            call(turn)

    launch, method = run, "CUDA events"
    if graph:
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(captured):
                run()
            launch, method = captured.replay, "CUDA events, graph"
        except RuntimeError as error:  # what a call does in a capture is its own; the cell is timed all the same
            torch.cuda.synchronize()
            method = f"CUDA events; not captured: {' '.join(str(error).split())[:200]}"
    launch()
    torch.cuda.synchronize()
    samples: list[float] = []
    end = time.perf_counter() + budget_s
    while len(samples) < _MAX_ROUNDS and (len(samples) < _MIN_ROUNDS or time.perf_counter() < end):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        launch()
        after.record()
        after.synchronize()
        samples.append(before.elapsed_time(after) / 1e3 / calls)
    return Times(tuple(samples), method)
