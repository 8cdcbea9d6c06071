"""The tensors of a timed cell, and the duration of calls on them.

Blocks are scattered, and there are enough copies of the pool that no cache holds what comes next. Calls are timed by
wall clock on a CPU, by events around CUDA graphs on a GPU; several calls are interleaved.
"""

# Shapes: T query tokens (packed)  B rows  N blocks  S tokens a block  M blocks a table row
#         H query heads  K kv heads  D head dim  V value dim

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from framework.interfaces.backend import AttentionBackend, Batch, LayerKV, Loss
from framework.interfaces.torch_ops import per_token_int8
from framework_testing.attention_cases import Case, Problem, batch_of, torch_dtype
from framework_testing.attention_runs import Verdict, judge
from framework_testing.kernel.cells import Cell, work_of

if TYPE_CHECKING:
    from torch import Tensor

_CACHES = 4
"""Buffers rotate over so many times the device's last-level cache."""
_JUDGED_QUERIES = 16


@dataclass(slots=True)
class Bench:
    """One cell, ready to be timed: q (T, H, D) and out (T, H, V), the batch, and equal-sized pools to take in turn."""

    case: Case
    q: Tensor
    out: Tensor
    batch: Batch
    pools: list[LayerKV]

    def attend(self, backend: AttentionBackend, turn: int) -> None:
        """One layer's attention on the pool whose turn it is. The backend is planned."""
        backend.attend(self.q, self.pools[turn % len(self.pools)], self.batch, self.out)


def num_pools(cell: Cell, cache_bytes: int) -> int:
    """Copies of the pool to rotate over: 1 where one alone exceeds 4 times the cache."""
    return max(1, -(-_CACHES * cache_bytes // max(1, work_of(cell).kv_bytes)))


def bytes_needed(cell: Cell, cache_bytes: int) -> int:
    """Bytes of all tensors of `build`, without the backend's own."""
    work = work_of(cell)
    return work.kv_bytes * num_pools(cell, cache_bytes) + (work.bytes - work.kv_bytes)


def most_bytes(device: str) -> int:
    """The most bytes of a cell's tensors: half of a GPU's memory; 2 GiB on a CPU, whose cells are small."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory) // 2
    return 2 * 2**30


def build(cell: Cell, device: str, cache_bytes: int, seed: int = 0) -> Bench:
    """Random tokens in blocks scattered over pools of just the size needed."""
    spec, case = cell.spec, Case(cell.spec, cell.contexts, cell.queries, seed)
    counts = [-(-context // spec.block_size) for context in cell.contexts]
    total = 1 + sum(counts)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(np.arange(1, total)).astype(np.int32))
    tables = torch.nn.utils.rnn.pad_sequence(list(torch.split(order, counts)), batch_first=True)
    generator = torch.Generator(device).manual_seed(seed)
    pools = [_pool(total, cell, device, generator) for _ in range(num_pools(cell, cache_bytes))]
    shape = (sum(cell.queries), spec.num_heads, spec.head_dim)
    q = torch.randn(shape, generator=generator, device=device).to(torch_dtype(spec.dtype))
    out = q.new_empty(*shape[:2], spec.value_dim)
    return Bench(case, q, out, batch_of(case, tables, device), pools)


def _pool(num_blocks: int, cell: Cell, device: str, generator: torch.Generator) -> LayerKV:
    spec = cell.spec
    inner = (spec.block_size, spec.num_kv_heads) if spec.layout == "NHD" else (spec.num_kv_heads, spec.block_size)
    shape = (num_blocks, *inner, spec.head_dim)
    dtype = torch_dtype(spec.kv_dtype or spec.dtype)
    scale = torch.full((spec.num_kv_heads,), 0.5, device=device) if dtype.itemsize == 1 else None

    def stored() -> tuple[Tensor, Tensor | None]:
        values = torch.randn(shape, generator=generator, device=device)
        return per_token_int8(values) if spec.kv_dtype == "int8" else (values.to(dtype), scale)

    k, k_scale = stored()
    if spec.latent_dim is not None:
        return LayerKV.of_rows(k, spec.latent_dim, spec.layout, k_scale)
    v, v_scale = stored()
    return LayerKV(k, v, spec.layout, k_scale, v_scale)


def judge_timed(backend: AttentionBackend, bench: Bench) -> Verdict:
    """The worst verdict on a few rows of the very batch that is timed, each row's last queries at most."""
    bench.out.fill_(float("nan"))
    bench.attend(backend, 0)
    rows = sorted({0, len(bench.case.contexts) // 2, len(bench.case.contexts) - 1})
    verdicts = [_judge_row(bench, row, backend.capabilities.lossy) for row in rows]
    return max(verdicts, key=lambda verdict: verdict.error / verdict.limit)


def _judge_row(bench: Bench, row: int, loss: Loss | None) -> Verdict:
    count, last = min(bench.case.queries[row], _JUDGED_QUERIES), int(bench.batch.host_query_starts[row + 1])
    case, tokens = Case(bench.case.spec, bench.case.contexts[row : row + 1], (count,)), slice(last - count, last)
    batch = batch_of(case, bench.batch.block_tables[row : row + 1].cpu(), "cpu")
    return judge(bench.out[tokens], Problem(case, bench.q[tokens], bench.pools[0], batch), loss)


def last_level_cache_bytes(device: str) -> int:
    """Bytes of the device's last-level cache, as it says itself; 32 MiB for a CPU that does not."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]] if text[-1:] in ("K", "M") else int(text))
    return max(sizes, default=32 * 2**20)


Call = Callable[[int], object]
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
