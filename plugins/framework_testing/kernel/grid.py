"""What is known of each cell of the grid: a measured time, a modelled floor, or why there is neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from framework.errors import ConfigError, plugin_note
from framework.guard.backend import GuardedBackend
from framework.guard.boundary import OUTSIDE, text_of
from framework.interfaces.backend import AttentionBackend, AttentionSpec, CompiledKernel
from framework.registry.culprit import named
from framework.replay.roofline import DEVICES
from framework_testing.attention_cases import Case, build_problem, torch_dtype
from framework_testing.attention_runs import Make, Verdict, judge, prepared, run_attention
from framework_testing.kernel import bench as benches
from framework_testing.kernel.bench import Bench, Call, Times, time_on_cpu, time_on_cuda
from framework_testing.kernel.cells import ARCHS, Cell, Work, cells, floor_s, work_of
from framework_testing.kernel.plugin import KernelOptions

_BYTES = {"cpu": 128 * 2**20, "cuda": 4 * 2**30}
_SIDE = {"cpu": 1024, "cuda": 8192}
"""The side of the buffers and the square matrices by which ceilings are measured."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best that simple programs reached; `*_by` names them.

    Attributes:
        bytes_per_s: read, or read and written.
        flops_per_s: a square matrix product in the queries' dtype.
    """

    bytes_per_s: float
    bytes_by: str
    flops_per_s: float
    flops_by: str


def measure(device: str, dtype: str, budget_s: float) -> Ceilings:
    """Fill large buffers and take the best of each kind. About 4 * budget_s seconds."""
    kind = torch.device(device).type
    size, side = _BYTES[kind], _SIDE[kind]
    if kind == "cuda":
        size = min(size, int(torch.cuda.mem_get_info(device)[0]) // 8)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(a)
    programs: dict[str, tuple[int, Call]] = {
        "sum": (size, lambda turn: source.sum()),
        "dot": (size, lambda turn: torch.dot(source, source)),
        "copy": (2 * size, lambda turn: target.copy_(source)),
        "product": (2 * side**3, lambda turn: torch.mm(a, b, out=out)),
    }
    rates, samples = dict[str, float](), dict[str, int]()
    for name, (amount, call) in programs.items():
        times = _timed(device, {name: call}, budget_s)[name]
        rates[name], samples[name] = amount / times.min_s, len(times.samples)
    best = max(("sum", "dot", "copy"), key=rates.__getitem__)
    return Ceilings(
        rates[best],
        f"torch {best} of {size // 2**20} MiB float32, best of {samples[best]}",
        rates["product"],
        f"{side}^3 {dtype} product, best of {samples['product']}",
    )


def _timed(
    device: str, calls: Mapping[str, Call], budget_s: float, *, num_turns: int = 1, graph: bool = True
) -> dict[str, Times]:
    if device.startswith("cuda"):
        return {name: time_on_cuda(call, budget_s, num_turns=num_turns, graph=graph) for name, call in calls.items()}
    return time_on_cpu(calls, budget_s)


@dataclass(frozen=True, slots=True)
class Gate:
    """What became of one spec: the worst verdict of all cases, and what was wrong, a sentence each."""

    num_cases: int
    worst: Verdict | None
    wrong: tuple[str, ...]


def gate(make: Make, spec: AttentionSpec, device: str) -> Gate:
    """Run decode, chunks and mixed batches with page edges, empty rows and NaN in every unused slot against fp64.

    A backend that raises is wrong, as one that miscounts.
    """
    verdicts: list[Verdict] = []
    wrong: list[str] = []
    chosen = list(gate_cases(spec))
    for case in chosen:
        problem = build_problem(case, device)
        try:
            backend = prepared(make, spec, device)
            out, _ = run_attention(backend, problem)
        except OUTSIDE:
            raise
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
        except BaseException as error:  # a plugin may fail in any way: it is named, and not timed
            wrong.append(f"{case}: raised {text_of(error)}")
            continue
        verdict = judge(out, problem, backend.capabilities.lossy)
        verdicts.append(verdict)
        if not verdict.ok:
            wrong.append(str(verdict))
    worst = max(verdicts, key=lambda verdict: verdict.error / verdict.limit, default=None)
    return Gate(len(chosen), worst, tuple(wrong))


def gate_cases(spec: AttentionSpec) -> Iterator[Case]:
    """Two batches of few rows: each costs a slow simulator a program a row and head."""
    size = spec.block_size
    yield Case(spec, (1, size, 5 * size + 3, 0, 2 * size + 1), (1,) * 5, seed=1)
    yield Case(spec, (size + 1, 3 * size - 1, 2 * size + 2), (1, 1, size + 2), seed=2)


Row = dict[str, Any]


class Grid:
    """Runs one backend over the grid, and keeps what was found.

    Args:
        make: gives a fresh backend.
        options: without nulls.
        chip: of the modelled floor, see `replay.device`.
        origin: facts that every row carries: device, versions, date.

    Attributes:
        cells: of the grid.
        rows: one a cell, in order; `status` ok, modelled, failed, unavailable or skipped.
        reasons: why cells failed or cannot run, each once.
        ceilings: of the device, measured before the first time was taken.
        screened: what the kernels take on the chip, where the backend can say.

    Raises:
        ConfigError: no such chip, or the grid is empty.
    """

    def __init__(
        self,
        make: Callable[[], AttentionBackend],
        name: str,
        device: str,
        options: KernelOptions,
        layout: str,
        chip: str = "h200",
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        if chip not in DEVICES:
            raise ConfigError(f"replay.device {chip!r} is unknown; known: {', '.join(DEVICES)}")
        self.make, self.name, self.device, self.options = make, name, device, options
        self.chip, self.cells = chip, list(cells(options, layout))
        if not self.cells:
            wanted = ("heads", "dtypes", "block_sizes", "lengths")
            empty = " and ".join(f"mode.{name}" for name in wanted if not getattr(options, name))
            need = empty or "mode.batch and mode.context, or mode.prefill"
            raise ConfigError(f"the kernel grid is empty: give {need}")
        self.origin = dict(origin or {})
        self.rows: list[Row] = []
        self.reasons: list[str] = []
        self.ceilings: Ceilings | None = None
        self.screened: list[CompiledKernel] = []
        self._ceilings: dict[str, Ceilings] = {}
        self._gates: dict[AttentionSpec, Gate] = {}
        self._cache_bytes = benches.last_level_cache_bytes(device)

    @property
    def status(self) -> str:
        """The status of the whole run: failed if any cell is, unavailable if every cell is, else ok."""
        statuses = {row["status"] for row in self.rows}
        if "failed" in statuses:
            return "failed"
        return "unavailable" if statuses == {"unavailable"} else "ok"

    def run(self) -> Iterator[Row]:
        """Every cell's row, as it is known."""
        for cell in self.cells:
            backend = self.make()
            try:
                judged = self._judged(backend, cell)
            except OUTSIDE:
                raise
            except BaseException as error:  # one cell's failure is a row
                judged = self._without("failed", [plugin_note(named(error)) or str(error)])
            row = {**self._head(cell), **judged, **self.origin}
            self.rows.append(row)
            yield row

    def _head(self, cell: Cell) -> Row:
        spec, work = cell.spec, work_of(cell)
        return {
            "backend": self.name,
            "cell": cell.name,
            "work": cell.work,
            "batch": len(cell.contexts),
            "context": cell.context,
            "lengths": cell.lengths,
            "block_size": spec.block_size,
            "heads": cell.heads,
            "dtype": spec.dtype,
            "kv_dtype": spec.kv_dtype or spec.dtype,
            "layout": spec.layout,
            "kv_bytes": work.kv_bytes,
            "bytes": work.bytes,
            "flop": work.flop,
            "device": self.device,
        }

    def _judged(self, backend: AttentionBackend, cell: Cell) -> Row:
        """The row's verdict, and its times only when the backend can run the cell and is right."""
        reasons = GuardedBackend(backend).check(cell.spec, self.device)
        if reasons:
            return self._without("unavailable", reasons)
        if cell.spec not in self._gates:
            self._gates[cell.spec] = gate(self.make, cell.spec, self.device)
        passed = self._gates[cell.spec]
        facts: Row = {"gate_cases": passed.num_cases}
        if passed.worst is not None:
            facts |= {"error": passed.worst.error, "allowed_error": passed.worst.limit}
        if passed.wrong:
            return {**facts, **self._without("failed", passed.wrong)}
        if self.device.split(":")[0] in backend.capabilities.simulated_devices:
            return {**facts, **self._modelled(backend, cell)}
        return {**facts, **self._measured(backend, cell)}

    def _without(self, status: str, reasons: tuple[str, ...] | list[str]) -> Row:
        self.reasons += [reason for reason in reasons if reason not in self.reasons]
        return {"status": status, "kind": None, "reasons": list(reasons)}

    def _modelled(self, backend: AttentionBackend, cell: Cell) -> Row:
        """No time: what the chip would need at best, and what the kernels take there."""
        for kernel in GuardedBackend(backend).screen(cell.spec, ARCHS[self.chip]) or ():
            if kernel not in self.screened:
                self.screened.append(kernel)
        floor = floor_s(work_of(cell), self.chip)
        return {"status": "modelled", "kind": "modelled", "target": self.chip, "floor_s": floor}

    def _measured(self, backend: AttentionBackend, cell: Cell) -> Row:
        needed, limit = benches.bytes_needed(cell, self._cache_bytes), benches.most_bytes(self.device)
        if needed > limit:
            return self._without("skipped", [f"needs {needed:,} bytes, the most here is {limit:,}"])
        ceilings = self._ceilings_of(cell.spec.dtype)
        bench = benches.build(cell, self.device, self._cache_bytes)
        backend.setup(cell.spec, self.device)
        backend.plan(bench.batch)
        verdict = benches.judge_timed(backend, bench)
        if not verdict.ok:
            return self._without("failed", [f"the timed batch: {verdict}"])
        times = self._times(backend, bench)
        yardstick = {}
        if "dense" in times:
            dense_s = times["dense"].median_s
            yardstick = {"dense_sdpa_s": dense_s, "speed_vs_dense_sdpa": dense_s / times["backend"].median_s}
        return {
            "status": "ok",
            "kind": "measured",
            "timed_error": verdict.error,
            "num_pools": len(bench.pools),
            **{f"backend_{name}": value for name, value in GuardedBackend(backend).facts().items()},
            **_rates(times["backend"], work_of(cell), ceilings),
            **yardstick,
        }

    def _times(self, backend: AttentionBackend, bench: Bench) -> dict[str, Times]:
        calls: dict[str, Call] = {"backend": lambda turn: bench.attend(backend, turn)}
        if not self.device.startswith("cuda") and (dense := dense_sdpa(bench)) is not None:
            calls["dense"] = dense
        graph = backend.capabilities.graph_safe
        with torch.no_grad():
            return _timed(self.device, calls, self.options.budget_s, num_turns=len(bench.pools), graph=graph)

    def _ceilings_of(self, dtype: str) -> Ceilings:
        if dtype not in self._ceilings:
            self._ceilings[dtype] = measure(self.device, dtype, min(1.0, self.options.budget_s))
            self.ceilings = self.ceilings or self._ceilings[dtype]
        return self._ceilings[dtype]


def _rates(times: Times, work: Work, ceilings: Ceilings) -> Row:
    """Achieved rates by the median, and the time the ceilings allow, as a share of the time it took."""
    median = times.median_s
    floor = max(work.bytes / ceilings.bytes_per_s, work.flop / ceilings.flops_per_s)
    return {
        "time_s": median,
        "time_s_min": times.min_s,
        "num_samples": len(times.samples),
        "timed_by": times.method,
        "gb_per_s": work.bytes / median / 1e9,
        "tflop_per_s": work.flop / median / 1e12,
        "ceiling_gb_per_s": ceilings.bytes_per_s / 1e9,
        "ceiling_tflop_per_s": ceilings.flops_per_s / 1e12,
        "bound": "bytes" if work.bytes / ceilings.bytes_per_s >= work.flop / ceilings.flops_per_s else "flop",
        "floor_s": floor,
        "share_of_ceiling": floor / median,
    }


def dense_sdpa(bench: Bench) -> Call | None:
    """SDPA on a dense contiguous cache (B, K, C, D) of the same numbers, the yardstick; None where it is no match.

    A group's query heads are queries in decode, so that no kv head is repeated; ragged batches would be padded.
    """
    spec, (context, *others), (count, *_) = bench.case.spec, bench.case.contexts, bench.case.queries
    if set(others) - {context} or spec.kv_dtype is not None or spec.latent_dim is not None:
        return None
    batch = 1 + len(others)
    heads, group = spec.num_kv_heads, spec.num_heads // spec.num_kv_heads
    shape = (batch, heads, context, spec.head_dim)
    caches = [(torch.randn(shape).to(bench.q), torch.randn(shape).to(bench.q)) for _ in bench.pools]
    if count == 1:
        q = bench.q.view(batch, heads, group, spec.head_dim)
        return lambda turn: scaled_dot_product_attention(q, *caches[turn % len(caches)])
    q = bench.q.view(batch, count, spec.num_heads, spec.head_dim).transpose(1, 2)
    k, v = (tensor[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for tensor in caches[0])
    return lambda turn: scaled_dot_product_attention(q, k, v, is_causal=True)
