"""Starts the kernels: workspaces, grids, and the interpreter's detours."""

# Shapes: T query tokens (packed)  B rows  W work items  H query heads  K kv heads  D head dim  S tokens a block

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.errors import InvalidArgument
from framework_builtin.backend.triton_kernels import plan as plans
from framework_builtin.backend.triton_kernels.kernels import compiled, interpreted

if TYPE_CHECKING:
    from torch import Tensor

    from framework.interfaces.backend import AttentionSpec, Batch, LayerKV
    from framework_builtin.backend.triton_kernels.configs import ArchConfig


@dataclass(slots=True)
class StepPlan:
    """What one batch's launches share over the layers. `work`, `rows` are None when no row is split."""

    batch: Batch
    num_decodes: int
    shape: plans.Shape
    num_work: int
    work: Tensor | None = None
    rows: Tensor | None = None


class Launcher:
    """The kernels for one spec on one device, with their workspaces.

    Args:
        arch: the configuration's row; None: the interpreter's own shapes (CPU only).
        device_items: decode programs that fill the device; 0: never split by work.
        split_tokens: cut every row at multiples of this many tokens instead.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        device: str,
        *,
        arch: ArchConfig | None,
        device_items: int,
        split_tokens: int | None,
    ) -> None:
        self._spec = spec
        self._device = device
        self._interpreted = device.split(":")[0] == "cpu"
        self._arch = arch
        self._share = device_items // spec.num_kv_heads
        self._min_split_tokens = arch.min_split_tokens if arch else 1
        self._split_tokens = split_tokens
        self._wrap = interpreted if self._interpreted else compiled
        self._constants = plans.feature_constants(spec, arch)
        self._upcast = self._interpreted and spec.dtype == "bfloat16"
        self._workspaces: dict[str, Tensor] = {}

    def plan(self, batch: Batch) -> StepPlan:
        """Choose tiles, and cut the decode rows into splits on the device. No length is read on the host."""
        from framework_builtin.backend.triton_kernels.decode import plan_splits

        spec, num_rows = self._spec, batch.num_decodes
        shape = plans.decode_shape(spec, self._arch, num_rows, batch.max_context_len)
        num_work, min_tiles = plans.work_capacity(
            num_rows, batch.max_context_len, shape.n, self._share, self._min_split_tokens, self._split_tokens
        )
        step = StepPlan(batch, num_rows, shape, num_work)
        if num_rows == 0 or num_work == num_rows:
            step.num_work = num_rows
            return step
        step.work = self._workspace("work", num_work * 4, "int32")
        step.rows = self._workspace("rows", num_rows * 2, "int32")
        capacity = batch.block_tables.shape[1] * spec.block_size
        self._wrap(plan_splits)[(1,)](
            batch.context_lens,
            step.work,
            step.rows,
            num_rows,
            num_work,
            spec.sliding_window or 0,
            min_tiles,
            HAS_WINDOW=spec.sliding_window is not None,
            N=shape.n,
            B=plans.next_power(num_rows),
            W=plans.next_power(num_work),
            STEPS=max(capacity // shape.n, 1).bit_length() + 1,
        )
        return step

    def attend(self, q: Tensor, pool: LayerKV, step: StepPlan, out: Tensor, lse: Tensor | None) -> None:
        """Decode rows, then chunks; shapes were checked by the backend."""
        q = q if q.stride(2) == 1 else q.contiguous()
        target = out
        if self._upcast or out.stride(2) != 1:
            # The interpreter cuts float32 to bfloat16 instead of rounding: torch rounds.
            import torch

            target = torch.empty(out.shape, dtype=torch.float32 if self._upcast else out.dtype, device=out.device)
        pool_k, pool_v = _as_stored(pool.k), _as_stored(pool.v)
        if step.num_decodes:
            self._decode(q, pool, pool_k, pool_v, step, target, lse)
        if len(step.batch.context_lens) > step.num_decodes:
            self._prefill(q, pool, pool_k, pool_v, step, target, lse)
        if target is not out:
            out.copy_(target)

    def write(self, pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store k, v (T, K, D) at `slots` (T,) int64; negative ones are skipped."""
        from framework_builtin.backend.triton_kernels.store import write_kv

        num_tokens = len(slots)
        if num_tokens == 0:
            return
        by_kernel = self._constants["FP8"] == 2 and not self._interpreted
        if not by_kernel:
            k, v = _to_stored(k, pool.k, pool.k_scale), _to_stored(v, pool.v, pool.v_scale)
        k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (k, v))
        pool_k, pool_v = _as_stored(pool.k), _as_stored(pool.v)
        elements = self._spec.num_kv_heads * self._spec.head_dim
        tokens = max(plans.next_power(num_tokens) if self._interpreted else 1, 1)
        tokens = min(tokens, max((1 << 20) // plans.next_power(elements), 1))
        self._wrap(write_kv)[(-(-num_tokens // tokens),)](
            k,
            v,
            pool_k,
            pool_v,
            slots.contiguous(),
            pool.k_scale if by_kernel else None,
            pool.v_scale if by_kernel else None,
            num_tokens,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            *_strides(pool_k, pool.layout),
            *_strides(pool_v, pool.layout),
            NUM_KV_HEADS=self._spec.num_kv_heads,
            HEAD_DIM=self._spec.head_dim,
            PAGE=pool.block_size,
            E=plans.next_power(elements),
            TOKENS=tokens,
            QUANTISE=by_kernel,
        )

    def copy_blocks(self, pool: LayerKV, copies: Tensor) -> None:
        """Copy whole blocks (source, destination), in order."""
        from framework_builtin.backend.triton_kernels.store import copy_blocks

        pool_k, pool_v = _as_stored(pool.k), _as_stored(pool.v)
        for stored in (pool_k, pool_v):
            if not stored[0].is_contiguous():
                raise InvalidArgument(f"a block must be contiguous to be copied, found strides {stored.stride()}")
        elements = pool_k[0].numel()
        slice_size = min(plans.next_power(elements), 1 << 20) if self._interpreted else 1024
        self._wrap(copy_blocks)[(-(-elements // slice_size),)](
            pool_k,
            pool_v,
            copies.contiguous(),
            len(copies),
            pool_k.stride(0),
            pool_v.stride(0),
            NUM_ELEMENTS=elements,
            E=slice_size,
            **({} if self._interpreted else {"num_stages": 1}),
        )

    def _decode(
        self, q: Tensor, pool: LayerKV, k: Tensor, v: Tensor, step: StepPlan, out: Tensor, lse: Tensor | None
    ) -> None:
        from framework_builtin.backend.triton_kernels.decode import decode, merge_splits

        spec, shape, batch = self._spec, step.shape, step.batch
        split = step.work is not None
        part = part_lse = None
        if split:
            part = self._workspace("part", step.num_work * spec.num_heads * spec.head_dim, "float32")
            part_lse = self._workspace("part_lse", step.num_work * spec.num_heads, "float32")
        num_items = step.num_work * spec.num_kv_heads
        self._wrap(decode)[(-(-num_items // shape.items),)](
            q,
            k,
            v,
            out,
            lse,
            batch.block_tables,
            batch.context_lens,
            *self._layer_constants(pool),
            step.work,
            part,
            part_lse,
            num_items,
            *plans.scales(spec),
            spec.sliding_window or 0,
            *self._all_strides(q, k, v, out, lse, batch, pool.layout),
            NUM_KV_HEADS=spec.num_kv_heads,
            M=shape.m,
            N=shape.n,
            D=shape.d,
            ITEMS=shape.items,
            SPLIT=split,
            UPCAST=self._upcast,
            **self._constants,
            **self._options(shape),
        )
        if split:
            heads = plans.next_power(spec.num_heads) if self._interpreted else min(plans.next_power(spec.num_heads), 8)
            self._wrap(merge_splits)[(step.num_decodes, -(-spec.num_heads // heads))](
                part,
                part_lse,
                step.rows,
                out,
                lse,
                out.stride(0),
                out.stride(1),
                *_lse_strides(lse),
                NUM_HEADS=spec.num_heads,
                HEAD_DIM=spec.head_dim,
                M=heads,
                D=shape.d,
            )

    def _prefill(
        self, q: Tensor, pool: LayerKV, k: Tensor, v: Tensor, step: StepPlan, out: Tensor, lse: Tensor | None
    ) -> None:
        from framework_builtin.backend.triton_kernels.prefill import prefill

        spec, batch = self._spec, step.batch
        shape = plans.prefill_shape(spec, self._arch, batch.max_query_len, batch.max_context_len)
        num_rows = len(batch.context_lens) - step.num_decodes
        block_q = shape.m // (spec.num_heads // spec.num_kv_heads)
        num_tiles = (q.shape[0] - step.num_decodes) // block_q + num_rows
        self._wrap(prefill)[(num_tiles, spec.num_kv_heads)](
            q,
            k,
            v,
            out,
            lse,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            *self._layer_constants(pool),
            step.num_decodes,
            num_rows,
            *plans.scales(spec),
            spec.sliding_window or 0,
            *self._all_strides(q, k, v, out, lse, batch, pool.layout),
            BLOCK_Q=block_q,
            M=shape.m,
            N=shape.n,
            D=shape.d,
            SEARCH_STEPS=(num_rows - 1).bit_length(),
            UPCAST=self._upcast,
            **self._constants,
            **self._options(shape),
        )

    def _layer_constants(self, pool: LayerKV) -> tuple[Tensor | None, ...]:
        spec = self._spec
        sinks = pool.sinks if spec.sinks else None
        slopes = pool.alibi_slopes if spec.alibi else None
        scaled = self._constants["FP8"] != 0
        return sinks, slopes, pool.k_scale if scaled else None, pool.v_scale if scaled else None

    @staticmethod
    def _all_strides(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, batch: Batch, layout: str
    ) -> tuple[int, ...]:
        return (
            batch.block_tables.stride(0),
            q.stride(0),
            q.stride(1),
            *_strides(k, layout),
            *_strides(v, layout),
            out.stride(0),
            out.stride(1),
            *_lse_strides(lse),
        )

    def _options(self, shape: plans.Shape) -> dict[str, Any]:
        return {} if self._interpreted else {"num_warps": shape.num_warps, "num_stages": shape.num_stages}

    def _workspace(self, name: str, num_elements: int, dtype: str) -> Tensor:
        """A flat buffer kept between steps; it grows, so warm up with the largest batch before capturing a graph."""
        import torch

        found = self._workspaces.get(name)
        if found is None or found.numel() < num_elements:
            found = torch.empty(num_elements, dtype=getattr(torch, dtype), device=self._device)
            self._workspaces[name] = found
        return found


def _as_stored(stored: Tensor) -> Tensor:
    """The pool as the kernels take it: e4m3 as bytes."""
    if stored.stride(-1) != 1:
        raise InvalidArgument(f"the head dim of a KV pool must be contiguous, found strides {stored.stride()}")
    if stored.element_size() == 1:
        import torch

        return stored.view(torch.uint8)
    return stored


def _to_stored(values: Tensor, stored: Tensor, scale: Tensor | None) -> Tensor:
    """What the pool holds for `values` (T, K, D): divided by the scale, clipped to e4m3's range, as bytes."""
    if stored.element_size() == 1:
        import torch

        if scale is not None:
            values = values.float() / scale[None, :, None]
        return values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    return values.to(stored.dtype)


def _strides(stored: Tensor, layout: str) -> tuple[int, int, int]:
    """Elements from block to block, token to token, head to head."""
    block, second, third, _ = stored.stride()
    return (block, second, third) if layout == "NHD" else (block, third, second)


def _lse_strides(lse: Tensor | None) -> tuple[int, int]:
    return (0, 0) if lse is None else (lse.stride(0), lse.stride(1))
