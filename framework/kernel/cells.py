"""The grid of cells that the `kernel` section spans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from framework.config.sections import KernelOptions, Lengths
from framework.errors import ConfigError
from framework.interfaces.backend import AttentionSpec
from framework.registry.signatures import shown

_RAGGED = 10
"""The longest row of a ragged batch is so many times the shortest."""


def for_device(options: KernelOptions, device: str, block_size: int) -> KernelOptions:
    """The options with every null replaced by what suits the device.

    Raises:
        ConfigError: a number below 1.
    """
    own = _CPU if device == "cpu" else _CUDA
    changes: dict[str, Any] = {name: value for name, value in own.items() if getattr(options, name) is None}
    if options.block_size is None:
        changes["block_size"] = (block_size,)
    filled = replace(options, **changes)
    for name in ("batch", "context", "prefill", "block_size"):
        for value in getattr(filled, name):
            if value < 1:
                raise ConfigError(f"kernel.{name} must be at least 1, found {value}")
    if filled.budget_s <= 0:
        raise ConfigError(f"kernel.budget_s must be above 0, found {filled.budget_s}")
    return filled


_CPU = {
    "batch": (1, 32),
    "context": (1024,),
    "prefill": (1024,),
    "heads": ("16/8/128",),
    "dtype": ("float32",),
}
_CUDA = {
    "batch": (1, 32, 128),
    "context": (2048, 8192, 32768),
    "prefill": (2048, 8192, 32768),
    "heads": ("32/8/128",),
    "dtype": ("bfloat16",),
}


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
        """Of the longest row, tokens."""
        return max(self.contexts)

    @property
    def name(self) -> str:
        """Such as "decode 32 x 1024 ragged, 16/8/128 float32, block 16"."""
        spec = self.spec
        shape = f"{spec.num_heads}/{spec.num_kv_heads}/{spec.head_dim} {spec.dtype}"
        stored = f"+{spec.kv_dtype}" if spec.kv_dtype else ""
        ragged = " ragged" if self.lengths == "ragged" else ""
        return f"{self.work} {len(self.contexts)} x {self.context}{ragged}, {shape}{stored}, block {spec.block_size}"


def cells(options: KernelOptions, layout: str) -> Iterator[Cell]:
    """The grid of options without nulls: decode cells first, each spec's together.

    Raises:
        ConfigError: heads that are not "query/kv/dim".
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
        options.heads or (), options.dtype or (), options.kv_dtype, options.block_size or ()
    ):
        num_heads, num_kv_heads, head_dim = _heads(heads)
        yield AttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=_dtype("kernel.dtype", dtype),
            kv_dtype=None if kv_dtype in (None, dtype) else _dtype("kernel.kv_dtype", str(kv_dtype)),
            block_size=size,
            layout=layout,
        )


def _heads(text: str) -> tuple[int, int, int]:
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isdigit() and len(part) <= 5 and int(part) > 0 for part in parts):
        raise ConfigError(
            f'kernel.heads must be "query/kv/dim" such as 32/8/128, each below 100000, found {shown(text)}'
        )
    query, kv, dim = (int(part) for part in parts)
    return query, kv, dim


_DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn")


def _dtype(key: str, name: str) -> str:
    if name not in _DTYPES:
        raise ConfigError(f"{key} {name!r} is unknown; known: {', '.join(_DTYPES)}")
    return name
