"""Lower bounds for attention: the bytes and operations that it needs, and the time a chip would take for them."""

# Shapes: H query heads  K kv heads  D head dim

from __future__ import annotations

from dataclasses import dataclass

from framework.kernel.cells import Cell
from framework.replay.roofline import DEVICES

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
_EXPONENTIALS_PER_S = {"h200": 4.2e12, "h100": 4.2e12}
"""132 multiprocessors of 16 a clock at 1.98 GHz: what bounds a prefill whose products run on tensor cores."""
_ARCHS = {"h200": "sm_90", "h100": "sm_90", "a100": "sm_80", "l40s": "sm_80"}


@dataclass(frozen=True, slots=True)
class Work:
    """The least that one `attend` must do.

    Attributes:
        kv_bytes: K and V of every row's context, once.
        bytes: those, the queries, the output and the block tables.
        flop: two a product of the two matrix products, visible pairs only.
        exponentials: one a visible pair and query head.
    """

    kv_bytes: int
    bytes: int
    flop: int
    exponentials: int


def work_of(cell: Cell) -> Work:
    """Count it, from lengths alone."""
    spec = cell.spec
    stored, size = _BYTES[spec.kv_dtype or spec.dtype], _BYTES[spec.dtype]
    scale = 4 if spec.kv_dtype == "int8" else 0  # of each token and head
    kv = sum(cell.contexts) * spec.num_kv_heads * 2 * (spec.head_dim * stored + scale)
    tokens, tables = sum(cell.queries), 4 * sum(-(-context // spec.block_size) for context in cell.contexts)
    pairs = sum(q * (c - q) + q * (q + 1) // 2 for c, q in zip(cell.contexts, cell.queries, strict=True))
    return Work(
        kv_bytes=kv,
        bytes=kv + 2 * tokens * spec.num_heads * spec.head_dim * size + tables,
        flop=4 * spec.head_dim * spec.num_heads * pairs,
        exponentials=pairs * spec.num_heads,
    )


def floor_s(work: Work, target: str) -> float:
    """Modelled: seconds the chip's ceilings allow at best. fp32 products run far below the bf16 ceiling used here."""
    chip = DEVICES[target]
    exponentials = work.exponentials / _EXPONENTIALS_PER_S[target] if target in _EXPONENTIALS_PER_S else 0.0
    return max(work.bytes / chip.bytes_per_s, work.flop / chip.flops_per_s, exponentials)


def arch_of(target: str) -> str:
    """The name compilers have for the chip, such as "sm_90"."""
    return _ARCHS[target]
