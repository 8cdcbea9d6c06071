"""Starts the kernels: workspaces, grids, and the interpreter's detours."""

# Shapes: T query tokens (packed)  B rows  W work items  H query heads  K kv heads  D head dim  S tokens a block

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework_builtin.backend.triton_kernels import plan as plans
from framework_builtin.backend.triton_kernels.operands import (
    as_stored,
    dense,
    descriptor,
    descriptors_can,
    strides,
    token_strides,
)
from framework_builtin.backend.triton_kernels.writes import PoolWriter

if TYPE_CHECKING:
    from torch import Tensor

    from framework.interfaces.backend import AttentionSpec, Batch, LayerKV
    from framework_builtin.backend.triton_kernels.configs import ArchConfig


@dataclass(slots=True)
class StepPlan:
    """What one batch's launches share over the layers. `work`, `rows` are None when no row is split.

    Attributes:
        shared: leading tokens that each group of `group_rows` rows reads together, in `num_pieces`; None: none may.
    """

    batch: Batch
    num_decodes: int
    shape: plans.Shape
    num_work: int
    work: Tensor | None = None
    rows: Tensor | None = None
    shared: Tensor | None = None
    shared_shape: plans.Shape | None = None
    group_rows: int = 1
    num_pieces: int = 1

    @property
    def num_groups(self) -> int:
        """Of rows that may share a prefix."""
        return -(-self.num_decodes // self.group_rows)


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
        tma: prefill by tensor descriptors where the table has a tile for the pages.
        shared_tokens: read a prefix of so many tokens that neighbouring decode rows share once for them; None: never.
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
        tma: bool = False,
        shared_tokens: int | None = None,
        wrap: Callable[[Callable[..., None]], Any] | None = None,
    ) -> None:
        super().__init__(spec, device, arch=arch, wrap=wrap)
        self._tma, self._shared_tokens = tma, shared_tokens
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
        step = StepPlan(batch, num_rows, shape, split.num_work)
        self._plan_shared(step)
        if num_rows == 0 or (split.num_work == num_rows and step.shared is None):
            step.num_work = num_rows
            return step
        step.work = self._workspace("work", split.num_work * 4, "int32")
        step.rows = self._workspace("rows", num_rows * 3, "int32")
        capacity = batch.block_tables.shape[1] * spec.block_size
        self._start(
            plan_splits,
            (1,),
            batch.context_lens,
            step.shared,
            step.work,
            step.rows,
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
            GROUP_ROWS=step.group_rows,
        )
        return step

    def _plan_shared(self, step: StepPlan) -> None:
        """Find, on the device, what neighbouring rows share, where that may be enough."""
        from framework_builtin.backend.triton_kernels.decode import plan_shared

        spec, batch, least = self._spec, step.batch, self._shared_tokens
        if least is None or step.num_decodes < 2 or batch.max_context_len <= least:
            return
        shape, rows = plans.shared_shape(spec, self._arch, step.shape)
        if rows < 2:
            return
        step.shared_shape, step.group_rows = shape, rows
        step.shared = self._workspace("shared", step.num_groups, "int32")
        step.num_pieces = plans.num_pieces(step.num_groups, batch.max_context_len, self._share, self._min_split_tokens)
        self._start(
            plan_shared,
            (step.num_groups,),
            batch.block_tables,
            batch.context_lens,
            step.shared,
            step.num_decodes,
            max(least, shape.n),
            batch.block_tables.stride(0),
            PAGE=spec.block_size,
            N=shape.n,
            ROWS=rows,
            R=plans.next_power(rows),
            BLOCKS=64,
        )

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
        part = sums = None
        if step.work is not None:
            shared_parts = 0 if step.shared is None else step.num_groups * step.num_pieces * step.group_rows
            part, sums = self._part_workspaces(step.num_work + shared_parts)
        if step.shared_shape is not None:
            num_work = step.num_groups * step.num_pieces
            self._start_decode(q, pool, k, v, step, out, lse, part, sums, step.shared_shape, num_work, step.group_rows)
        self._start_decode(q, pool, k, v, step, out, lse, part, sums, step.shape, step.num_work, 1)
        if step.work is not None:
            self._merge(part, sums, step.rows, out, lse, step.shape, first_row=0, num_rows=step.num_decodes, step=step)

    def _start_decode(
        self,
        q: Tensor,
        pool: LayerKV,
        k: Tensor,
        v: Tensor,
        step: StepPlan,
        out: Tensor,
        lse: Tensor | None,
        part: Tensor | None,
        sums: Tensor | None,
        shape: plans.Shape,
        num_work: int,
        rows: int,
    ) -> None:
        """One launch: over the rows' own work items, or over those of what `rows` of them share."""
        from framework_builtin.backend.triton_kernels.decode import decode

        spec, batch = self._spec, step.batch
        num_items = num_work * spec.num_kv_heads * shape.head_blocks
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
            step.shared if rows > 1 else None,
            part,
            sums,
            step.num_decodes,
            step.num_work,
            step.num_pieces,
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
            ROWS=rows,
            **self._constants,
            **self._options(shape),
        )

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
        step: StepPlan | None = None,
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
            0 if step is None else step.num_work,
            1 if step is None else step.num_pieces,
            out.stride(0),
            out.stride(1),
            *token_strides(lse),
            NUM_HEADS=spec.num_heads,
            HEAD_DIM=spec.head_dim,
            M=heads,
            D=shape.d,
            N=1 if step is None or step.shared is None else shape.n,
            GROUP_ROWS=1 if step is None else step.group_rows,
        )

    def _prefill(
        self, q: Tensor, pool: LayerKV, k: Tensor, v: Tensor, step: StepPlan, out: Tensor, lse: Tensor | None
    ) -> None:
        from framework_builtin.backend.triton_kernels.prefill import prefill

        spec, batch = self._spec, step.batch
        chunks = self._chunks(q, k, v, step)
        shape, num_splits = chunks.shape, chunks.num_splits
        part = sums = None
        if chunks.split_len:
            part, sums = self._part_workspaces(num_splits * chunks.num_tokens)
        self._start(
            prefill,
            (*plans.prefill_grid(spec, shape, chunks.num_tokens, chunks.num_rows), num_splits),
            q,
            descriptor(k, shape.n, pool.layout) if shape.tma else k,
            descriptor(v, shape.n, pool.layout) if shape.tma else v,
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
            TMA=(1 if pool.layout == "NHD" else 2) if shape.tma else 0,
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

    def _chunks(self, q: Tensor, k: Tensor, v: Tensor, step: StepPlan) -> ChunkPlan:
        """Tiles for the rows that are no decodes, and how their contexts are cut."""
        spec, batch = self._spec, step.batch
        tma = self._tma and descriptors_can(k) and descriptors_can(v)
        shape = plans.prefill_shape(spec, self._arch, batch.max_query_len, batch.max_context_len, tma=tma)
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
