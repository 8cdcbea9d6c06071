"""Variants of the kernels that ship, and the launch of each over tensors that lie as an engine's do.

What Triton compiles for a launch follows from its arguments: types, alignment, integers equal to 1, constants. So it is
taken from launches, here made without a device: the launcher's own code chooses tiles, splits and arguments.
"""

# Shapes: T query tokens (packed)  B rows  N blocks  S tokens a block  H query heads  K kv heads  D head dim

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from framework.interfaces.backend import AttentionSpec, Batch, LayerKV, Rope
from framework_triton.configs import ARCHS
from framework_triton.launch import Launcher

_LONG, _SHORT = 8192, 100
"""Contexts, tokens: of one that is split where few rows have it, and of one that never is."""
_USUAL: dict[str, Any] = {
    "num_heads": 32,
    "num_kv_heads": 4,
    "head_dim": 128,
    "dtype": "bfloat16",
    "block_size": 16,
}
_LATENT: dict[str, Any] = {"num_kv_heads": 1, "head_dim": 576, "latent_dim": 512}
_UNUSUAL: tuple[dict[str, Any], ...] = (
    {"sliding_window": 4096, "soft_cap": 50.0, "sinks": True, "alibi": True, "block_size": 256},
    {"num_kv_heads": 32, "head_dim": 80, "block_size": 3},  # one token a page id, padded heads, no group
)
_STORED = {"fp8": "float8_e4m3fn", "int8": "int8", "float_bytes": "int8"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as an architecture runs it, specialised on the spec; the rest as the launch asks for it.

    Attributes:
        split: of decode, prefill and merge_splits: over the context (merge: of decode rows, else of chunks); of
            copy_blocks: one after another.
        rope: of a write: None, or which elements are a pair, "halves" or "neighbours".
    """

    arch: str
    kernel: str
    spec: AttentionSpec
    split: bool = True
    lse: bool = False
    rope: str | None = None

    @property
    def name(self) -> str:
        """A stable key, such as "sm_90/decode/bfloat16/d128/group8/page16"."""
        spec = self.spec
        stored = f"+{spec.kv_dtype}" if spec.kv_dtype else ""
        group = spec.num_heads // spec.num_kv_heads
        extras = [
            name for name in ("sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi") if getattr(spec, name)
        ]
        extras += [name for name, on in (("lse", self.lse), ("unsplit", not self.split)) if on]
        extras += [f"rope_{self.rope}"] if self.rope else []
        extras += [spec.layout] if spec.layout != "NHD" else []
        dim = (
            f"d{spec.head_dim}"
            if spec.latent_dim is None
            else f"latent{spec.latent_dim}+{spec.head_dim - spec.latent_dim}"
        )
        shape = f"{spec.dtype}{stored}/{dim}/group{group}/page{spec.block_size}"
        return "/".join([self.arch, self.kernel, shape, *extras])


def shipped_variants() -> Iterator[Variant]:
    """Every configuration of the table; with all features and odd shapes once an architecture, as the small kernels."""
    for arch in ARCHS:
        for kind, dim in ARCHS[arch].decode:
            if kind in ("latent", "unaligned"):
                continue
            dtype = "float32" if kind.startswith("float") else "bfloat16"
            spec = AttentionSpec(**(_USUAL | {"head_dim": dim, "dtype": dtype, "kv_dtype": _STORED.get(kind)}))
            yield Variant(arch, "decode", spec)
            yield Variant(arch, "prefill", spec, split=False)
            if dim == 128:
                yield Variant(arch, "prefill", spec)
        for heads in (128, 16):  # DeepSeek V3 whole, and a small or divided one; chosen tokens are blocks of one
            spec = AttentionSpec(**(_USUAL | _LATENT | {"num_heads": heads, "block_size": 64 if heads == 128 else 1}))
            yield Variant(arch, "decode", spec)
            yield Variant(arch, "prefill", spec, split=False)
        yield Variant(arch, "merge_splits", AttentionSpec(**(_USUAL | _LATENT)))
        for changes in _UNUSUAL:
            spec = AttentionSpec(**(_USUAL | changes))
            yield Variant(arch, "decode", spec, split=spec.sinks, lse=spec.sinks)
            yield Variant(arch, "prefill", spec, split=False, lse=spec.sinks)
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
    yield Variant(arch, "write_kv", small, rope="halves")
    yield Variant(arch, "write_kv", AttentionSpec(**(_USUAL | {"kv_dtype": "float8_e4m3fn"})), rope="neighbours")
    yield Variant(arch, "write_kv", AttentionSpec(**(_USUAL | {"kv_dtype": "int8"})), rope="halves")


def launch(variant: Variant, launcher: Launcher) -> None:
    """Have `launcher` make launches that this kernel is among, over stand-ins: none of them may run."""
    spec, pool = variant.spec, _pool(variant.spec)
    if variant.kernel == "copy_blocks":
        launcher.copy_blocks(pool, torch.zeros(2, 2, dtype=torch.int64), ordered=variant.split)
        return
    rows, queries, context = _batch_of(variant)
    dtype = getattr(torch, spec.dtype)
    tokens, heads = rows * queries, (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    packed = torch.zeros(tokens, sum(heads), spec.head_dim, dtype=dtype)  # one projection's
    q, k, v = torch.split(packed, list(heads), dim=1)
    if variant.kernel == "write_kv":
        slots = torch.zeros(tokens, dtype=torch.int64)
        if variant.rope is None:
            launcher.write(pool, k, v, slots)
        else:
            cos, sin = (torch.zeros(tokens, spec.head_dim // 2, dtype=dtype) for _ in "cs")
            rope = Rope(cos, sin, interleaved=variant.rope == "neighbours")
            launcher.rotate_and_write(pool, q, k, v, rope, slots)
        return
    batch = Batch(
        block_tables=torch.zeros(rows, -(-context // spec.block_size), dtype=torch.int32),
        context_lens=torch.full((rows,), context, dtype=torch.int32),
        query_starts=torch.arange(rows + 1, dtype=torch.int32) * queries,
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        max_query_len=queries,
        max_context_len=context,
        num_decodes=rows if queries == 1 else 0,
    )
    q = q.contiguous()  # rotated
    lse = torch.empty(tokens, spec.num_heads) if variant.lse else None
    out = torch.empty(tokens, spec.num_heads, spec.value_dim, dtype=dtype)
    launcher.attend(q, pool, launcher.plan(batch), out, lse)


def _batch_of(variant: Variant) -> tuple[int, int, int]:
    """Rows, queries and context tokens of each, of a batch that launches this kernel in this variant."""
    if variant.kernel == "prefill" and not variant.split:
        return 2, _SHORT, _SHORT
    if variant.kernel == "prefill" or (variant.kernel == "merge_splits" and not variant.split):
        return 1, 20, _LONG
    return 2, 1, _LONG if variant.split else _SHORT


def _pool(spec: AttentionSpec) -> LayerKV:
    """Two blocks."""
    inner = (spec.block_size, spec.num_kv_heads) if spec.layout == "NHD" else (spec.num_kv_heads, spec.block_size)
    k, v = (torch.empty(2, *inner, spec.head_dim, dtype=getattr(torch, spec.kv_dtype or spec.dtype)) for _ in "kv")
    k_scale = v_scale = None
    if spec.kv_dtype not in (None, spec.dtype):
        k_scale, v_scale = (torch.empty((2, *inner) if spec.kv_dtype == "int8" else spec.num_kv_heads) for _ in "kv")
    sinks = torch.zeros(spec.num_heads) if spec.sinks else None
    slopes = torch.zeros(spec.num_heads) if spec.alibi else None
    if spec.latent_dim is not None:
        return LayerKV.of_rows(k, spec.latent_dim, spec.layout)
    return LayerKV(k, v, spec.layout, k_scale, v_scale, sinks, slopes)
