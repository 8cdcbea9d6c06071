"""Starts the kernels: workspaces, grids, and the interpreter's detours."""

# Shapes: T query tokens (packed)  B rows  W work items  H query heads  K kv heads  D head dim  S tokens a block

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.errors import InvalidArgument
from framework_triton import plan as plans
from framework_triton.kernels import compiled, interpreted

if TYPE_CHECKING:
    from torch import Tensor

    from framework.interfaces.backend import AttentionSpec, Batch, LayerKV, Rope
    from framework_triton.configs import ArchConfig


@dataclass(slots=True)
class StepPlan:
    """What one batch's launches share over the layers. `work`, `rows` are None when no row is split."""

    batch: Batch
    num_decodes: int
    shape: plans.Shape
    num_work: int
    work: Tensor | None = None
    rows: Tensor | None = None


@dataclass(slots=True)
class Layer:
    """What the attention kernels of one layer read and write: k and v are the pool's, as stored."""

    q: Tensor
    k: Tensor
    v: Tensor
    pool: LayerKV
    out: Tensor
    lse: Tensor | None


class Launcher:
    """The kernels for one spec on one device, with their workspaces.

    Args:
        arch: the configuration's row; None: the interpreter's own shapes (CPU only).
        num_sms: multiprocessors of the device, which the splits of a batch are to fill; 0: never split by work.
        split_tokens: cut every row at multiples of this many tokens instead.
        wrap: what makes a kernel of a function; None: Triton's interpreter on a CPU, else its compiler.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        device: str,
        *,
        arch: ArchConfig | None,
        num_sms: int,
        split_tokens: int | None,
        wrap: Callable[[Callable[..., None]], Any] | None = None,
    ) -> None:
        self._spec = spec
        self._device = device
        self._interpreted = wrap is None and device.split(":")[0] == "cpu"
        self._arch = arch
        self._wrap = wrap or (interpreted if self._interpreted else compiled)
        self._on_device = _current(device)
        self._constants = plans.feature_constants(spec, arch)
        self._upcast = self._interpreted and spec.dtype == "bfloat16"
        self._share = num_sms * (arch.items_per_sm if arch else 0) // spec.num_kv_heads
        self._chunk_programs = num_sms * (arch.chunks_per_sm if arch else 0)
        self._min_split_tokens = arch.min_split_tokens if arch else 1
        self._split_tokens = split_tokens
        self._workspaces: dict[str, Tensor] = {}
        self._outgrown: list[Tensor] = []

    def plan(self, batch: Batch) -> StepPlan:
        """Choose tiles, and cut the decode rows into splits on the device. No length is read on the host."""
        from framework_triton.decode import plan_splits

        spec, num_rows = self._spec, batch.num_decodes
        shape = plans.decode_shape(spec, self._arch, num_rows, batch.max_context_len)
        split = plans.split_of(
            num_rows, batch.max_context_len, shape.n, self._share, self._min_split_tokens, self._split_tokens
        )
        if num_rows == 0 or split.num_work == num_rows:
            return StepPlan(batch, num_rows, shape, num_rows)
        work = self._workspace("work", split.num_work * 4, "int32")
        rows = self._workspace("rows", num_rows * 2, "int32")
        capacity = batch.block_tables.shape[1] * spec.block_size
        span, window = plans.span(spec)
        self._start(
            plan_splits, (1,), batch.context_lens, work, rows, num_rows, split.num_work, split.share,
            split.num_choices, window, split.min_tiles, max(capacity // shape.n, 1).bit_length() + 1,
            SPAN=span, N=shape.n, B=plans.next_size(num_rows), W=plans.next_size(split.num_work),
        )  # fmt: skip
        return StepPlan(batch, num_rows, shape, split.num_work, work, rows)

    def attend(self, q: Tensor, pool: LayerKV, step: StepPlan, out: Tensor, lse: Tensor | None) -> None:
        """Decode rows, then chunks; shapes were checked by the backend."""
        q = dense(q, 2)
        target = out
        if self._upcast or out.stride(2) != 1:
            # The interpreter cuts float32 to bfloat16 instead of rounding: torch rounds.
            import torch

            target = torch.empty(out.shape, dtype=torch.float32 if self._upcast else out.dtype, device=out.device)
        layer = Layer(q, as_stored(pool.k), as_stored(pool.v), pool, target, lse)
        if step.num_decodes:
            self._decode(layer, step)
        if len(step.batch.context_lens) > step.num_decodes:
            self._prefill(layer, step)
        if target is not out:
            out.copy_(target)

    def _decode(self, layer: Layer, step: StepPlan) -> None:
        from framework_triton.decode import decode

        shape, is_split = step.shape, step.work is not None
        num_items = step.num_work * self._spec.num_kv_heads * shape.head_blocks
        parts = self._part_workspaces(step.num_work) if is_split else (None, None)
        self._attend(
            decode, (-(-num_items // shape.items),), layer, step.batch, shape, step.work, *parts, num_items,
            ITEMS=shape.items, SPLIT=is_split,
        )  # fmt: skip
        if is_split:
            self._merge(layer, shape, parts, step.rows, first_row=0, num_rows=step.num_decodes)

    def _prefill(self, layer: Layer, step: StepPlan) -> None:
        """The rows that are no decodes. Where they fill too little of the device, their contexts are cut, too."""
        from framework_triton.prefill import prefill

        spec, batch, first = self._spec, step.batch, step.num_decodes
        shape = plans.prefill_shape(spec, self._arch, batch.max_query_len, batch.max_context_len)
        num_rows, num_tokens = len(batch.context_lens) - first, layer.q.shape[0] - first
        split_len = plans.chunk_split_len(
            plans.prefill_grid(spec, shape, num_tokens, num_rows), batch.max_context_len, shape.n,
            self._chunk_programs, self._min_split_tokens, self._split_tokens,
        )  # fmt: skip
        num_splits = 1
        parts: tuple[Tensor | None, Tensor | None] = (None, None)
        if split_len:
            shape = shape if self._arch is None else plans.split_shape(spec, shape)
            num_splits = -(-batch.max_context_len // split_len)
            parts = self._part_workspaces(num_splits * num_tokens)
        self._attend(
            prefill, (*plans.prefill_grid(spec, shape, num_tokens, num_rows), num_splits), layer, batch, shape,
            batch.query_starts, *parts, first, num_rows, num_tokens, (num_rows - 1).bit_length(), split_len,
            BLOCK_Q=plans.block_q(spec, shape),
        )  # fmt: skip
        if split_len:
            self._merge(layer, shape, parts, None, first_row=first, num_rows=num_tokens, num_splits=num_splits)

    def _attend(
        self, kernel: Callable[..., None], grid: tuple[int, ...], layer: Layer, batch: Batch, shape: plans.Shape,
        *own: Any,
        **constants: Any,
    ) -> None:  # fmt: skip
        """Launch decode or prefill: `own` and `constants` are what one of them has beside what both have."""
        spec, pool, (span, window) = self._spec, layer.pool, plans.span(self._spec)
        self._start(
            kernel, grid, layer.q, layer.k, layer.v, layer.out, layer.lse, batch.block_tables, batch.context_lens,
            pool.sinks if spec.sinks else None, pool.alibi_slopes if spec.alibi else None, *self._scales(pool),
            *own, *plans.scales(spec), window,
            batch.block_tables.stride(0), *token_strides(layer.q), *strides(layer.k, pool.layout),
            *strides(layer.v, pool.layout), *self._scale_strides(pool), *token_strides(layer.out),
            *token_strides(layer.lse),
            NUM_KV_HEADS=spec.num_kv_heads, HEAD_BLOCKS=shape.head_blocks, M=shape.m, N=shape.n, D=shape.d, SPAN=span,
            UPCAST=self._upcast, **self._constants, **self._options(shape), **constants,
        )  # fmt: skip

    def _merge(
        self, layer: Layer, shape: plans.Shape, parts: tuple[Tensor | None, Tensor | None], rows: Tensor | None,
        *, first_row: int, num_rows: int,
        num_splits: int = 0,
    ) -> None:  # fmt: skip
        """Put splits together: of decode rows as `rows` says, else `num_splits` of each of `num_rows` tokens."""
        from framework_triton.decode import merge_splits

        spec = self._spec
        heads = plans.next_power(spec.num_heads) if self._interpreted else min(plans.next_power(spec.num_heads), 8)
        self._start(
            merge_splits, (num_rows, -(-spec.num_heads // heads)), *parts, rows, layer.out, layer.lse, first_row,
            num_rows, num_splits, *token_strides(layer.out), *token_strides(layer.lse),
            NUM_HEADS=spec.num_heads, HEAD_DIM=spec.value_dim, M=heads, D=shape.d,
        )  # fmt: skip

    def _part_workspaces(self, num_parts: int) -> tuple[Tensor, Tensor]:
        """Room for the outputs, and for the largest logits and sums, of `num_parts` splits of a token's context."""
        num_heads = num_parts * self._spec.num_heads
        part = self._workspace("part", num_heads * self._spec.value_dim, "float32")
        return part, self._workspace("part_sums", num_heads * 2, "float32")

    def _options(self, shape: plans.Shape) -> dict[str, Any]:
        if self._interpreted:
            return {}
        options = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
        return options | ({"maxnreg": shape.max_registers} if shape.max_registers else {})

    def _workspace(self, name: str, num_elements: int, dtype: str) -> Tensor:
        """A flat buffer kept between steps. It grows to powers of two.

        Outgrown ones, together smaller than the last, are kept: a captured graph may still use them.
        """
        import torch

        workspace = self._workspaces.get(name)
        if workspace is None or workspace.numel() < num_elements:
            if workspace is not None:
                self._outgrown.append(workspace)
            workspace = torch.empty(plans.next_power(num_elements), dtype=getattr(torch, dtype), device=self._device)
            self._workspaces[name] = workspace
        return workspace

    def write(self, pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store k, v (T, K, D) at `slots` (T,) int64; negative ones are skipped."""
        if len(slots):
            self._store(pool, k, v, slots, None)

    def rotate_and_write(self, pool: LayerKV, q: Tensor, k: Tensor, v: Tensor, rope: Rope, slots: Tensor) -> Tensor:
        """`write` with k rotated; returns q (T, H, D) rotated, contiguous. One launch."""
        import torch

        spec, num_tokens = self._spec, len(slots)
        require("q", q, (num_tokens, spec.num_heads, spec.head_dim))
        if rope.positions is not None:
            require("positions", rope.positions, (num_tokens,))
        num_angles = num_tokens if rope.positions is None else len(rope.cos)
        for name, x in (("cos", rope.cos), ("sin", rope.sin)):
            require(name, x, (num_angles, spec.head_dim // 2))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if len(slots):
            self._store(pool, k, v, slots, (dense(q, 2), out, rope))
        return out

    def _store(
        self, pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor, rotation: tuple[Tensor, Tensor, Rope] | None
    ) -> None:
        from framework_triton.store import write_kv

        spec, num_tokens = self._spec, len(slots)
        for name, x in (("k", k), ("v", v)):
            require(name, x, (num_tokens, spec.num_kv_heads, spec.head_dim))
        shape = plans.store_shape(spec, num_tokens, rotates=rotation is not None, interpreted=self._arch is None)
        q = out = cos = sin = positions = None
        if rotation is not None:
            q, out, rope = rotation
            cos, sin = dense(rope.cos, 1), dense(rope.sin, 1)
            positions = None if rope.positions is None else rope.positions.contiguous()
        k, v = dense(k, 2), dense(v, 2)
        pool_k, pool_v = as_stored(pool.k), as_stored(pool.v)
        self._start(
            write_kv, (-(-num_tokens // shape.tokens), shape.parts), q, k, v, out, pool_k, pool_v, cos, sin, positions,
            slots.contiguous(), *self._scales(pool), num_tokens, *token_strides(q), *token_strides(k),
            *token_strides(v), *token_strides(out), 0 if cos is None else cos.stride(0),
            0 if sin is None else sin.stride(0), *strides(pool_k, pool.layout), *strides(pool_v, pool.layout),
            *self._scale_strides(pool),
            NUM_HEADS=spec.num_heads, NUM_KV_HEADS=spec.num_kv_heads, HEAD_DIM=spec.head_dim, PAGE=pool.block_size,
            PAIRS=shape.pairs, HEADS=shape.heads, TOKENS=shape.tokens, UPCAST=self._upcast,
            INTERLEAVED=rotation is not None and rotation[2].interleaved,
            QUANTISE=plans.quantised(self._constants["STORED"]),
        )  # fmt: skip

    def copy_blocks(self, pool: LayerKV, copies: Tensor, *, ordered: bool) -> None:
        """Copy whole blocks (source, destination), with int8's scales; in order, unless no destination is a source."""
        pairs = [(as_stored(pool.k), as_stored(pool.v))]
        if self._constants["STORED"] == plans.INT8:
            pairs.append(self._token_scales(pool))
        for stored in itertools.chain(*pairs):
            if not stored[0].is_contiguous():
                raise InvalidArgument(f"a block must be contiguous to be copied, found strides {stored.stride()}")
        for k, v in pairs:
            self._copy(k, v, copies, ordered=ordered)

    def _copy(self, k: Tensor, v: Tensor, copies: Tensor, *, ordered: bool) -> None:
        from framework_triton.store import copy_blocks

        elements = k[0].numel()
        slice_size = min(plans.next_power(elements), 1 << 20) if self._interpreted else 1024
        self._start(
            copy_blocks, (-(-elements // slice_size), 1 if ordered else len(copies)), k, v, copies.contiguous(),
            len(copies), k.stride(0), v.stride(0), NUM_ELEMENTS=elements, E=slice_size, ORDERED=ordered,
            **({} if self._interpreted else {"num_stages": 1}),
        )  # fmt: skip

    def _scales(self, pool: LayerKV) -> tuple[Tensor | None, Tensor | None]:
        """What K and V are multiplied by, of a head or of a token and head; None where nothing is."""
        if self._constants["STORED"] == plans.AS_QUERIES:
            return None, None
        if self._constants["STORED"] == plans.INT8:
            return self._token_scales(pool)
        return pool.k_scale, pool.v_scale

    def _scale_strides(self, pool: LayerKV) -> tuple[int, int, int]:
        """Elements between the scales of blocks, of tokens and of heads; zeros where there are none."""
        if self._constants["STORED"] != plans.INT8:
            return 0, 0, 0
        return strides(self._token_scales(pool)[0], pool.layout)

    def _token_scales(self, pool: LayerKV) -> tuple[Tensor, Tensor]:
        k, v = pool.k_scale, pool.v_scale
        if k is None or v is None or k.shape != pool.k.shape[:3] or v.shape != pool.v.shape[:3]:
            shapes = [None if scale is None else tuple(scale.shape) for scale in (k, v)]
            raise InvalidArgument(
                f"an int8 pool needs a scale of each token and head, {tuple(pool.k.shape[:3])}, found {shapes}"
            )
        if k.stride() != v.stride():
            raise InvalidArgument(f"the scales of K and V must lie alike, found strides {k.stride()} and {v.stride()}")
        return k, v

    def _start(self, kernel: Callable[..., None], grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        """Launch on this launcher's device: Triton takes whichever is current.

        Compiled kernels may fuse multiplications and additions: said here, as Triton's default is to change in 3.10.
        """
        if not self._interpreted:
            constants["enable_fp_fusion"] = True
        with self._on_device:
            self._wrap(kernel)[grid](*args, **constants)


def _current(device: str) -> AbstractContextManager[Any]:
    """Makes a CUDA device with an index the current one; may be entered again and again."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index:
        return nullcontext()
    import torch

    return torch.cuda.device(int(index))


def as_stored(stored: Tensor) -> Tensor:
    """The pool as the kernels take it: e4m3 and int8 as bytes."""
    if stored.stride(-1) != 1:
        raise InvalidArgument(f"the head dim of a KV pool must be contiguous, found strides {stored.stride()}")
    if stored.element_size() == 1:
        import torch

        return stored.view(torch.uint8)
    return stored


def strides(stored: Tensor, layout: str) -> tuple[int, int, int]:
    """Elements from block to block, token to token, head to head, of K or V or of their scales."""
    block, second, third = stored.stride()[:3]
    return (block, second, third) if layout == "NHD" else (block, third, second)


def token_strides(x: Tensor | None) -> tuple[int, int]:
    """Elements from token to token, head to head."""
    return (0, 0) if x is None else (x.stride(0), x.stride(1))


def require(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """The kernels trust shapes: what is too small would be read or written beyond its end."""
    if tuple(x.shape) != shape:
        raise InvalidArgument(f"{name} is {tuple(x.shape)}, should be {shape}")


def dense(x: Tensor, axis: int) -> Tensor:
    """`x`, or a copy of it, whose elements lie side by side along its last axis."""
    return x if x.stride(axis) == 1 else x.contiguous()
