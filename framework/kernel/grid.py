"""What is known of each cell of the grid: a measured time, a modelled floor, or why there is neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from framework.config.sections import KernelOptions
from framework.errors import ConfigError, PluginError, Unsupported
from framework.guard.backend import GuardedBackend
from framework.interfaces.backend import AttentionBackend, AttentionSpec, CompiledKernel
from framework.kernel import bench as benches
from framework.kernel.bench import Bench
from framework.kernel.ceilings import Ceilings, measure
from framework.kernel.cells import Cell, cells
from framework.kernel.floors import Work, arch_of, floor_s, work_of
from framework.kernel.gate import Gate, gate
from framework.kernel.timing import Call, Times, time_on_cpu, time_on_cuda

Row = dict[str, Any]


class Grid:
    """Runs one backend over the grid, and keeps what was found.

    Args:
        make: gives a fresh backend.
        options: without nulls.
        origin: facts that every row carries: device, versions, date.

    Attributes:
        rows: one a cell, in order; `status` ok, modelled, failed, unavailable or skipped.
        reasons: why cells failed or cannot run, each once.
        ceilings: of the device, measured before the first time was taken.
        screened: what the kernels take on the target chip, where the backend can say.
    """

    def __init__(
        self,
        make: Callable[[], AttentionBackend],
        name: str,
        device: str,
        options: KernelOptions,
        layout: str,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.make, self.name, self.device, self.options, self.layout = make, name, device, options, layout
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
        """Of the whole run: failed if any cell is, unavailable if every cell is, else ok."""
        found = {row["status"] for row in self.rows}
        if "failed" in found:
            return "failed"
        return "unavailable" if found == {"unavailable"} else "ok"

    @property
    def first_spec(self) -> AttentionSpec:
        """Of the first cell.

        Raises:
            ConfigError: the grid is empty.
        """
        for cell in cells(self.options, self.layout):
            return cell.spec
        empty = [
            f"kernel.{name}" for name in ("heads", "dtype", "block_size", "lengths") if not getattr(self.options, name)
        ]
        need = " and ".join(empty) or "kernel.batch and kernel.context, or kernel.prefill"
        raise ConfigError(f"the kernel grid is empty: give {need}")

    def run(self) -> Iterator[Row]:
        """Every cell's row, as it is known.

        Raises:
            ConfigError: the grid is empty.
        """
        self.first_spec  # noqa: B018
        for cell in cells(self.options, self.layout):
            backend = self.make()
            try:
                judged = self._judged(backend, cell)
            except (PluginError, Unsupported) as error:
                judged = self._without("failed", [str(error)])
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
            "heads": f"{spec.num_heads}/{spec.num_kv_heads}/{spec.head_dim}",
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
        if not passed.ok:
            return {**facts, **self._without("failed", passed.wrong)}
        if self.device.split(":")[0] in backend.capabilities.simulated_devices:
            return {**facts, **self._modelled(backend, cell)}
        return {**facts, **self._measured(backend, cell)}

    def _without(self, status: str, reasons: tuple[str, ...] | list[str]) -> Row:
        self.reasons += [reason for reason in reasons if reason not in self.reasons]
        return {"status": status, "kind": None, "reasons": list(reasons)}

    def _modelled(self, backend: AttentionBackend, cell: Cell) -> Row:
        """No time: what the target chip would need at best, and what the kernels take there."""
        target = self.options.target
        for found in GuardedBackend(backend).screen(cell.spec, arch_of(target)) or ():
            if found not in self.screened:
                self.screened.append(found)
        return {"status": "modelled", "kind": "modelled", "target": target, "floor_s": floor_s(work_of(cell), target)}

    def _measured(self, backend: AttentionBackend, cell: Cell) -> Row:
        needed, limit = benches.bytes_needed(cell, self._cache_bytes), self.options.max_bytes
        if limit is not None and needed > limit:
            return self._without("skipped", [f"needs {needed:,} bytes, kernel.max_bytes is {limit:,}"])
        ceilings = self._ceilings_of(cell.spec.dtype)
        bench = benches.build(cell, self.device, self._cache_bytes)
        guarded = GuardedBackend(backend)
        guarded.setup(cell.spec, self.device)
        guarded.plan(bench.batch)
        verdict = benches.judge_timed(guarded, bench)
        if not verdict.ok:
            return self._without("failed", [f"the timed batch: {verdict}"])
        times = guarded.timed(lambda: self._times(backend, bench))
        return {
            "status": "ok",
            "kind": "measured",
            "timed_error": verdict.error,
            "num_pools": len(bench.pools),
            **{f"backend_{name}": value for name, value in guarded.facts().items()},
            **_rates(times["backend"], work_of(cell), ceilings),
            **_yardstick(times),
        }

    def _times(self, backend: AttentionBackend, bench: Bench) -> dict[str, Times]:
        def attend(turn: int) -> None:
            bench.attend(backend, turn)

        with torch.no_grad():
            if self.device.startswith("cuda"):
                graph = backend.capabilities.graph_safe
                found = time_on_cuda(attend, self.options.budget_s, num_turns=len(bench.pools), graph=graph)
                return {"backend": found}
            calls: dict[str, Call] = {"backend": attend}
            dense = dense_sdpa(bench)
            if dense is not None:
                calls["dense"] = dense
            return time_on_cpu(calls, self.options.budget_s)

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


def _yardstick(times: Mapping[str, Times]) -> Row:
    if "dense" not in times:
        return {}
    dense = times["dense"].median_s
    return {"dense_sdpa_s": dense, "speed_vs_dense_sdpa": dense / times["backend"].median_s}


def dense_sdpa(bench: Bench) -> Call | None:
    """SDPA on a dense contiguous cache (B, K, C, D) of the same numbers, the yardstick; None where it is no match.

    A group's query heads are queries in decode, so that no kv head is repeated; ragged batches would be padded.
    """
    cell, spec = bench.cell, bench.cell.spec
    if cell.lengths != "uniform" or spec.kv_dtype is not None:
        return None
    batch, count, context = len(cell.contexts), cell.queries[0], cell.context
    heads, group = spec.num_kv_heads, spec.num_heads // spec.num_kv_heads
    shape = (batch, heads, context, spec.head_dim)
    caches = [(torch.randn(shape).to(bench.q), torch.randn(shape).to(bench.q)) for _ in bench.pools]
    if count == 1:
        q = bench.q.view(batch, heads, group, spec.head_dim)
        return lambda turn: _discard(scaled_dot_product_attention(q, *caches[turn % len(caches)]))
    q = bench.q.view(batch, count, spec.num_heads, spec.head_dim).transpose(1, 2)
    k, v = (tensor[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for tensor in caches[0])
    return lambda turn: _discard(scaled_dot_product_attention(q, k, v, is_causal=True))


def _discard(result: torch.Tensor) -> None:
    """The time is wanted, not the value."""
