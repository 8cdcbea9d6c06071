"""Ceilings of the device: memory bandwidth and matrix throughput, measured in the same run as the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framework.kernel.timing import Call, Times, time_on_cpu, time_on_cuda
from framework.testing.attention_cases import torch_dtype

_CPU_BYTES, _CUDA_BYTES = 128 * 2**20, 4 * 2**30
_CPU_SIDE, _CUDA_SIDE = 1024, 8192


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best that simple programs reached; `*_by` names them.

    Attributes:
        bytes_per_s: a CPU's reads; a GPU's device copy, bytes read and written, as KV reads rarely pass it.
        flops_per_s: a square matrix product in the queries' dtype.
    """

    bytes_per_s: float
    bytes_by: str
    flops_per_s: float
    flops_by: str


def measure(device: str, dtype: str, budget_s: float) -> Ceilings:
    """Fill large buffers and take the best of each kind. About 4 * budget_s seconds."""
    if device.startswith("cuda"):
        return _cuda(device, dtype, budget_s)
    data = torch.ones(_CPU_BYTES // 4)
    other = torch.empty_like(data)
    times = time_on_cpu(
        {
            "sum": lambda turn: _use(data.sum()),
            "dot": lambda turn: _use(torch.dot(data, data)),
            "copy": lambda turn: _use(other.copy_(data)),
        },
        budget_s,
    )
    moved = {"sum": _CPU_BYTES, "dot": _CPU_BYTES, "copy": 2 * _CPU_BYTES}
    rates = {name: moved[name] / found.min_s for name, found in times.items()}
    best = max(rates, key=rates.__getitem__)
    call, flop = _product("cpu", dtype, _CPU_SIDE)
    product = time_on_cpu({"product": call}, budget_s)["product"]
    return Ceilings(
        rates[best],
        f"torch {best} of {_CPU_BYTES // 2**20} MiB float32, best of {len(times[best].samples)}",
        flop / product.min_s,
        f"{_CPU_SIDE}^3 {dtype} product, best of {len(product.samples)}",
    )


def _cuda(device: str, dtype: str, budget_s: float) -> Ceilings:
    free, _ = torch.cuda.mem_get_info(device)
    size = min(_CUDA_BYTES, int(free) // 8)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copy: Times = time_on_cuda(lambda turn: _use(target.copy_(source)), budget_s, num_turns=1, graph=True)
    call, flop = _product(device, dtype, _CUDA_SIDE)
    product = time_on_cuda(call, budget_s, num_turns=1, graph=True)
    return Ceilings(
        2 * size / copy.median_s,
        f"device copy of {size // 2**20} MiB, median of {len(copy.samples)}",
        flop / product.median_s,
        f"{_CUDA_SIDE}^3 {dtype} product, median of {len(product.samples)}",
    )


def _product(device: str, dtype: str, side: int) -> tuple[Call, int]:
    a, b = (torch.randn(side, side, device=device).to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(a)
    return (lambda turn: _use(torch.mm(a, b, out=out))), 2 * side**3


def _use(result: torch.Tensor) -> None:
    """Eager torch computes in any case; a name for "the value is not wanted"."""
