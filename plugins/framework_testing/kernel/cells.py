"""The grid of cells that the `kernel` section spans, and the least that a chip must do and take for each."""

# Shapes: H query heads  K kv heads  D head dim  V value dim

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from framework.errors import ConfigError, shown
from framework.interfaces.backend import AttentionSpec
from framework.replay.roofline import DEVICES
from framework_testing.kernel.plugin import KernelOptions, Lengths

_RAGGED = 10
"""The longest row of a ragged batch is so many times the shortest."""

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
_EXPONENTIALS_PER_S = {"h200": 4.2e12, "h100": 4.2e12}
"""132 multiprocessors of 16 a clock at 1.98 GHz: what bounds a prefill whose products run on tensor cores."""
ARCHS = {"h200": "sm_90", "h100": "sm_90", "a100": "sm_80", "l40s": "sm_80"}
"""Chip -> the name that compilers have for it."""


def for_device(options: KernelOptions, device: str, block_size: int) -> KernelOptions:
    """The options with every null replaced by what suits the device."""
    defaults = _CPU if device == "cpu" else _CUDA
    changes: dict[str, Any] = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    if options.block_sizes is None:
        changes["block_sizes"] = (block_size,)
    return options.changed(**changes)


_CPU = {"batch": (1, 32), "context": (1024,), "prefill": (1024,), "heads": ("16/8/128",), "dtypes": ("float32",)}
_CUDA = {
    "batch": (1, 32, 128), "context": (2048, 8192, 32768), "prefill": (2048, 8192, 32768), "heads": ("32/8/128",),
    "dtypes": ("bfloat16",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid: a spec, and each row's context and queries in tokens."""

    spec: AttentionSpec
    work: Literal["decode", "prefill"]
    lengths: Lengths
    contexts: tuple[int, ...]
    queries: tuple[int, ...]

    @property
    def context(self) -> int:
        """Tokens of the longest row."""
        return max(self.contexts)

    @property
    def heads(self) -> str:
        """As `KernelOptions.heads` has them."""
        spec = self.spec
        if spec.latent_dim is not None:
            return f"{spec.num_heads}/{spec.latent_dim}+{spec.head_dim - spec.latent_dim}"
        return f"{spec.num_heads}/{spec.num_kv_heads}/{spec.head_dim}"

    @property
    def name(self) -> str:
        """Such as "decode 32 x 1024 ragged, 16/8/128 float32, block 16"."""
        spec = self.spec
        shape = f"{self.heads} {spec.dtype}"
        stored = f"+{spec.kv_dtype}" if spec.kv_dtype else ""
        ragged = " ragged" if self.lengths == "ragged" else ""
        return f"{self.work} {len(self.contexts)} x {self.context}{ragged}, {shape}{stored}, block {spec.block_size}"


def cells(options: KernelOptions, layout: str) -> Iterator[Cell]:
    """The grid of options without nulls: decode cells first, each spec's together.

    Raises:
        ConfigError: heads that are neither "query/kv/dim" nor "query/latent+rope".
    """
    for spec in _specs(options, layout):
        for batch, context, lengths in itertools.product(options.batch or (), options.context or (), options.lengths):
            if lengths == "ragged" and batch == 1:
                continue  # one row has nothing to differ from
            yield Cell(spec, "decode", lengths, _contexts(batch, context, lengths), (1,) * batch)
        for tokens in options.prefill or ():
            yield Cell(spec, "prefill", "uniform", (tokens,), (tokens,))


def _contexts(batch: int, context: int, lengths: str) -> tuple[int, ...]:
    """Ragged: evenly spread, neighbours far apart, as requests arrive."""
    if lengths == "uniform":
        return (context,) * batch
    low = max(1, context // _RAGGED)
    spread = [low + (context - low) * row // (batch - 1) for row in range(batch)]
    half = batch // 2
    mixed = [value for pair in itertools.zip_longest(spread[:half], spread[half:]) for value in pair]
    return tuple(value for value in mixed if value is not None)


def _specs(options: KernelOptions, layout: str) -> Iterator[AttentionSpec]:
    for heads, dtype, kv_dtype, size in itertools.product(
        options.heads or (), options.dtypes or (), options.kv_dtype, options.block_sizes or ()
    ):
        yield AttentionSpec(
            **_heads(heads),
            dtype=_dtype("mode.dtypes", dtype),
            kv_dtype=None if kv_dtype in (None, dtype) else _dtype("mode.kv_dtype", str(kv_dtype)),
            block_size=size,
            layout=layout,
        )


def _heads(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})([/+])(\d{1,5})", text, re.ASCII)
    numbers = [int(match[group]) for group in (1, 2, 4)] if match else []
    if match is None or not all(numbers):
        raise ConfigError(
            'mode.heads must be "query/kv/dim" such as 32/8/128, or "query/latent+rope" of a latent cache such as '
            f"128/512+64, each below 100000, found {shown(text)}"
        )
    query, second, last = numbers
    if match[3] == "+":
        return {"num_heads": query, "num_kv_heads": 1, "head_dim": second + last, "latent_dim": second}
    return {"num_heads": query, "num_kv_heads": second, "head_dim": last}


def _dtype(key: str, name: str) -> str:
    if name not in _BYTES:
        raise ConfigError(f"{key} {name!r} is unknown; known: {', '.join(_BYTES)}")
    return name


@dataclass(frozen=True, slots=True)
class Work:
    """The least that one `attend` must do.

    Attributes:
        kv_bytes: K and V of every row's context, once; of a latent cache its rows.
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
    kv = sum(cell.contexts) * (sum(spec.planes.values()) * stored + spec.vectors * scale)
    tokens, tables = sum(cell.queries), 4 * sum(-(-context // spec.block_size) for context in cell.contexts)
    pairs = sum(q * (c - q) + q * (q + 1) // 2 for c, q in zip(cell.contexts, cell.queries, strict=True))
    return Work(
        kv_bytes=kv,
        bytes=kv + tokens * spec.num_heads * (spec.head_dim + spec.value_dim) * size + tables,
        flop=2 * (spec.head_dim + spec.value_dim) * spec.num_heads * pairs,
        exponentials=pairs * spec.num_heads,
    )


def floor_s(work: Work, target: str) -> float:
    """Modelled: seconds the chip's ceilings allow at best. fp32 products run far below the bf16 ceiling used here."""
    chip = DEVICES[target]
    exponentials = work.exponentials / _EXPONENTIALS_PER_S[target] if target in _EXPONENTIALS_PER_S else 0.0
    return max(work.bytes / chip.bytes_per_s, work.flop / chip.flops_per_s, exponentials)
