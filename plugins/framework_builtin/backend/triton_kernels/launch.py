"""Starts the kernels: workspaces, grids, and the interpreter's detours."""

# Shapes: T query tokens (packed)  B rows  W work items  H query heads  K kv heads  D head dim  S tokens a block

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework_builtin.backend.triton_kernels import plan as plans
from framework_builtin.backend.triton_kernels.writes import PoolWriter, as_stored, dense, strides, token_strides

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


@dataclass(slots=True)
class ChunkPlan:
    """What one layer's prefill launch needs: `split_len` 0 where no context is cut."""

    shape: plans.Shape
    num_rows: int
    num_tokens: int
    split_len: int = 0
    num_splits: int = 1


class Launcher(PoolWriter):
    """The kernels for one spec on one device, with their workspaces.

    Args:
        arch: the configuration's row; None: the interpreter's own shapes (CPU only).
        num_sms: multiprocessors of the device, which the splits of a batch are to fill; 0: never split by work.
        split_tokens: cut every row at multiples of this many tokens instead.
        wrap: as PoolWriter's.
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
        super().__init__(spec, device, arch=arch, wrap=wrap)
        self._share = num_sms * (arch.items_per_sm if arch else 0) // spec.num_kv_heads
        self._chunk_programs = num_sms * (arch.chunks_per_sm if arch else 0)
        self._min_split_tokens = arch.min_split_tokens if arch else 1
        self._split_tokens = split_tokens
        self._workspaces: dict[str, Tensor] = {}
        self._outgrown: list[Tensor] = []

    def plan(self, batch: Batch) -> StepPlan:
        """Choose tiles, and cut the decode rows into splits on the device. No length is read on the host."""
        from framework_builtin.backend.triton_kernels.decode import plan_splits

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
        self._start(
            plan_splits,
            (1,),
            batch.context_lens,
            work,
            rows,
            num_rows,
            split.num_work,
            split.share,
            split.num_choices,
            spec.sliding_window or 0,
            split.min_tiles,
            max(capacity // shape.n, 1).bit_length() + 1,
            HAS_WINDOW=spec.sliding_window is not None,
            N=shape.n,
            B=plans.next_size(num_rows),
            W=plans.next_size(split.num_work),
        )
        return StepPlan(batch, num_rows, shape, split.num_work, work, rows)

    def attend(self, q: Tensor, pool: LayerKV, step: StepPlan, out: Tensor, lse: Tensor | None) -> None:
        """Decode rows, then chunks; shapes were checked by the backend."""
        q = dense(q, 2)
        target = out
        if self._upcast or out.stride(2) != 1:
            # The interpreter cuts float32 to bfloat16 instead of rounding: torch rounds.
            import torch

            target = torch.empty(out.shape, dtype=torch.float32 if self._upcast else out.dtype, device=out.device)
        pool_k, pool_v = as_stored(pool.k), as_stored(pool.v)
        if step.num_decodes:
            self._decode(q, pool, pool_k, pool_v, step, target, lse)
        if len(step.batch.context_lens) > step.num_decodes:
            self._prefill(q, pool, pool_k, pool_v, step, target, lse)
        if target is not out:
            out.copy_(target)

    def _decode(
        self, q: Tensor, pool: LayerKV, k: Tensor, v: Tensor, step: StepPlan, out: Tensor, lse: Tensor | None
    ) -> None:
        from framework_builtin.backend.triton_kernels.decode import decode

        spec, batch, shape = self._spec, step.batch, step.shape
        num_items = step.num_work * spec.num_kv_heads * shape.head_blocks
        part = sums = None
        if step.work is not None:
            part, sums = self._part_workspaces(step.num_work)
        self._start(
            decode,
            (-(-num_items // shape.items),),
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
            sums,
            num_items,
            *plans.scales(spec),
            spec.sliding_window or 0,
            *self._all_strides(q, k, v, out, lse, batch, pool),
            NUM_KV_HEADS=spec.num_kv_heads,
            HEAD_BLOCKS=shape.head_blocks,
            M=shape.m,
            N=shape.n,
            D=shape.d,
            ITEMS=shape.items,
            SPLIT=step.work is not None,
            UPCAST=self._upcast,
            **self._constants,
            **self._options(shape),
        )
        if step.work is not None:
            self._merge(part, sums, step.rows, out, lse, shape, first_row=0, num_rows=step.num_decodes)

    def _merge(
        self,
        part: Tensor | None,
        sums: Tensor | None,
        rows: Tensor | None,
        out: Tensor,
        lse: Tensor | None,
        shape: plans.Shape,
        *,
        first_row: int,
        num_rows: int,
        num_splits: int = 0,
    ) -> None:
        """Put splits together: of decode rows as `rows` says, else `num_splits` of each of `num_rows` tokens."""
        from framework_builtin.backend.triton_kernels.decode import merge_splits

        spec = self._spec
        heads = plans.next_power(spec.num_heads) if self._interpreted else min(plans.next_power(spec.num_heads), 8)
        self._start(
            merge_splits,
            (num_rows, -(-spec.num_heads // heads)),
            part,
            sums,
            rows,
            out,
            lse,
            first_row,
            num_rows,
            num_splits,
            out.stride(0),
            out.stride(1),
            *token_strides(lse),
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
        chunks = self._chunks(q, step)
        shape, num_splits = chunks.shape, chunks.num_splits
        part = sums = None
        if chunks.split_len:
            part, sums = self._part_workspaces(num_splits * chunks.num_tokens)
        self._start(
            prefill,
            (*plans.prefill_grid(spec, shape, chunks.num_tokens, chunks.num_rows), num_splits),
            q,
            k,
            v,
            out,
            lse,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            *self._layer_constants(pool),
            part,
            sums,
            step.num_decodes,
            chunks.num_rows,
            chunks.num_tokens,
            (chunks.num_rows - 1).bit_length(),
            chunks.split_len,
            *plans.scales(spec),
            spec.sliding_window or 0,
            *self._all_strides(q, k, v, out, lse, batch, pool),
            NUM_KV_HEADS=spec.num_kv_heads,
            HEAD_BLOCKS=shape.head_blocks,
            BLOCK_Q=plans.block_q(spec, shape),
            M=shape.m,
            N=shape.n,
            D=shape.d,
            UPCAST=self._upcast,
            **self._constants,
            **self._options(shape),
        )
        if chunks.split_len:
            self._merge(
                part,
                sums,
                None,
                out,
                lse,
                shape,
                first_row=step.num_decodes,
                num_rows=chunks.num_tokens,
                num_splits=num_splits,
            )

    def _chunks(self, q: Tensor, step: StepPlan) -> ChunkPlan:
        """Tiles for the rows that are no decodes, and how their contexts are cut."""
        spec, batch = self._spec, step.batch
        shape = plans.prefill_shape(spec, self._arch, batch.max_query_len, batch.max_context_len)
        num_rows = len(batch.context_lens) - step.num_decodes
        num_tokens = q.shape[0] - step.num_decodes
        split_len = plans.chunk_split_len(
            plans.prefill_grid(spec, shape, num_tokens, num_rows),
            batch.max_context_len,
            shape.n,
            self._chunk_programs,
            self._min_split_tokens,
            self._split_tokens,
        )
        if not split_len:
            return ChunkPlan(shape, num_rows, num_tokens)
        shape = shape if self._arch is None else plans.split_shape(spec, shape)
        return ChunkPlan(shape, num_rows, num_tokens, split_len, -(-batch.max_context_len // split_len))

    def _layer_constants(self, pool: LayerKV) -> tuple[Tensor | None, ...]:
        spec = self._spec
        sinks = pool.sinks if spec.sinks else None
        slopes = pool.alibi_slopes if spec.alibi else None
        return sinks, slopes, *self._scales(pool)

    def _part_workspaces(self, num_parts: int) -> tuple[Tensor, Tensor]:
        """Room for the outputs, and for the largest logits and sums, of `num_parts` splits of a token's context."""
        num_heads = num_parts * self._spec.num_heads
        part = self._workspace("part", num_heads * self._spec.head_dim, "float32")
        return part, self._workspace("part_sums", num_heads * 2, "float32")

    def _all_strides(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, batch: Batch, pool: LayerKV
    ) -> tuple[int, ...]:
        return (
            batch.block_tables.stride(0),
            q.stride(0),
            q.stride(1),
            *strides(k, pool.layout),
            *strides(v, pool.layout),
            *self._scale_strides(pool),
            out.stride(0),
            out.stride(1),
            *token_strides(lse),
        )

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

        found = self._workspaces.get(name)
        if found is None or found.numel() < num_elements:
            if found is not None:
                self._outgrown.append(found)
            found = torch.empty(plans.next_power(num_elements), dtype=getattr(torch, dtype), device=self._device)
            self._workspaces[name] = found
        return found
