"""Variants of the kernels: what is compiled ahead of time for each chip, and which step launches it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.interfaces.backend import AttentionSpec
from framework_builtin.backend.triton_kernels.configs import ARCHS

if TYPE_CHECKING:
    from framework_builtin.backend.triton_kernels.steps import Step

_USUAL: dict[str, Any] = {
    "num_heads": 32,
    "num_kv_heads": 4,
    "head_dim": 128,
    "dtype": "bfloat16",
    "block_size": 16,
}
_UNUSUAL: tuple[dict[str, Any], ...] = (
    {"sliding_window": 4096, "soft_cap": 50.0, "sinks": True, "alibi": True, "block_size": 256},
    {"num_kv_heads": 32, "head_dim": 80, "block_size": 3},  # one token a page id, padded heads, no group
)
_ALL_FEATURES: dict[str, Any] = {"sliding_window": 4096, "soft_cap": 50.0, "sinks": True, "alibi": True}
_STORED = {"fp8": "float8_e4m3fn", "int8": "int8", "float_bytes": "int8"}
_KINDS = ("half", "fp8", "int8", "float", "float_bytes")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as an architecture runs it, specialised on the spec; the rest as the launch asks for it.

    Attributes:
        split: of decode, prefill and merge_splits: over the context (merge: of decode rows, else of chunks); of
            copy_blocks: one after another.
        rope: of a write: None, or which elements are a pair, "halves" or "neighbours".
        tma: of a prefill: tensor descriptors load K and V.
        shared: of decode, plan_shared and merge_splits: rows share a prefix.
    """

    arch: str
    kernel: str
    spec: AttentionSpec
    split: bool = True
    lse: bool = False
    rope: str | None = None
    tma: bool = False
    shared: bool = False

    @property
    def name(self) -> str:
        """A stable key, such as "sm_90/decode/bfloat16/d128/group8/page16"."""
        spec = self.spec
        stored = f"+{spec.kv_dtype}" if spec.kv_dtype else ""
        group = spec.num_heads // spec.num_kv_heads
        extras = [name for name in ("sliding_window", "soft_cap", "sinks", "alibi") if getattr(spec, name)]
        extras += [
            name
            for name, on in (("lse", self.lse), ("unsplit", not self.split), ("tma", self.tma), ("shared", self.shared))
            if on
        ]
        extras += [f"rope_{self.rope}"] if self.rope else []
        extras += [spec.layout] if spec.layout != "NHD" else []
        shape = f"{spec.dtype}{stored}/d{spec.head_dim}/group{group}/page{spec.block_size}"
        return "/".join([self.arch, self.kernel, shape, *extras])

    @property
    def step(self) -> Step:
        """A step whose launches this kernel is among."""
        from framework_builtin.backend.triton_kernels.steps import SHORT, Step

        if self.kernel == "copy_blocks":
            return Step(copies=2, ordered=self.split)
        if self.kernel == "write_kv":
            return Step(attends=False, rope=self.rope)
        if self.kernel == "prefill":
            return (
                Step(rows=1, queries=20, lse=self.lse)
                if self.split
                else Step(queries=SHORT, context=SHORT, lse=self.lse)
            )
        if self.kernel == "merge_splits":
            return Step(lse=self.lse) if self.split else Step(rows=1, queries=20, lse=self.lse)
        return Step(lse=self.lse) if self.split else Step(context=SHORT, lse=self.lse)


def shipped_variants(archs: tuple[str, ...] = tuple(ARCHS)) -> Iterator[Variant]:
    """Every configuration of the table; with all features and odd shapes once an architecture, as the small kernels."""
    for arch in archs:
        for kind, dim in ARCHS[arch].decode:
            spec = _spec_of(kind, dim)
            yield Variant(arch, "decode", spec)
            yield Variant(arch, "decode", spec, shared=True)
            yield Variant(arch, "prefill", spec, split=False)
            if dim == 128:
                yield Variant(arch, "prefill", spec)
        for changes in _UNUSUAL:
            spec = AttentionSpec(**(_USUAL | changes))
            yield Variant(arch, "decode", spec, split=spec.sinks, lse=spec.sinks)
            yield Variant(arch, "prefill", spec, split=False, lse=spec.sinks)
        for dim, configs in ARCHS[arch].tma.items():
            for config in configs:
                spec = AttentionSpec(**(_USUAL | {"head_dim": dim, "block_size": config.block_n}))
                yield Variant(arch, "prefill", spec, split=False, tma=True)
        if ARCHS[arch].tma:
            yield Variant(arch, "prefill", AttentionSpec(**(_USUAL | _UNUSUAL[0])), split=False, lse=True, tma=True)
        yield from _small_kernels(arch)
        for heads, group in ((128, 128), (32, 2)):  # one kv head for all, in blocks of heads; a group below 16 rows
            spec = AttentionSpec(**(_USUAL | {"num_heads": heads, "num_kv_heads": heads // group}))
            yield Variant(arch, "decode", spec)
            yield Variant(arch, "prefill", spec, split=False)


def _small_kernels(arch: str) -> Iterator[Variant]:
    """Those that do not attend."""
    small = AttentionSpec(**_USUAL)
    for kernel in ("plan_splits", "merge_splits", "write_kv", "copy_blocks"):
        yield Variant(arch, kernel, small)
    for kernel in ("merge_splits", "copy_blocks"):
        yield Variant(arch, kernel, small, split=False)
    for kernel in ("plan_shared", "plan_splits", "merge_splits"):
        yield Variant(arch, kernel, small, shared=True)
    yield Variant(arch, "write_kv", small, rope="halves")
    yield Variant(arch, "write_kv", AttentionSpec(**(_USUAL | {"kv_dtype": "float8_e4m3fn"})), rope="neighbours")
    yield Variant(arch, "write_kv", AttentionSpec(**(_USUAL | {"kv_dtype": "int8"})), rope="halves")


def _spec_of(kind: str, dim: int, **changes: Any) -> AttentionSpec:
    """Of a kind of the table, 32 query heads in groups of 8 unless changed."""
    dtype = "float32" if kind.startswith("float") else "bfloat16"
    return AttentionSpec(**(_USUAL | {"head_dim": dim, "dtype": dtype, "kv_dtype": _STORED.get(kind)} | changes))
