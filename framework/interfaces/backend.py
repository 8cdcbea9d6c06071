"""The extension point for attention backends: attention over a paged KV pool."""

# Shapes: T query tokens (packed)  B requests  N blocks in the pool, the null block included  S tokens a block
#         M blocks a table row     H query heads  K kv heads  D head dim  V value dim

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.attention import LAYOUTS as LAYOUTS
from framework.interfaces.attention import AttentionSpec as AttentionSpec
from framework.interfaces.attention import Batch as Batch
from framework.interfaces.attention import Capabilities as Capabilities
from framework.interfaces.attention import CompiledKernel as CompiledKernel
from framework.interfaces.attention import LayerKV as LayerKV
from framework.interfaces.attention import Loss as Loss
from framework.interfaces.attention import Rope as Rope
from framework.interfaces.attention import Row as Row

if TYPE_CHECKING:
    from torch import Tensor


class AttentionBackend(ABC):
    """Reads the pool through block tables and writes the attention output. Owns no KV memory.

    `check` before anything starts; `setup` once; then per step `plan` once and, for each layer, `write` and `attend`.
    `write`, `rotate_and_write` and `copy_blocks` have defaults, so that a backend may be one method long.
    """

    capabilities: ClassVar[Capabilities]

    spec: AttentionSpec

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        """Why this backend cannot serve `spec` on `device` ("cpu", "cuda", "cuda:1"); empty when it can.

        Override to add what the capabilities cannot say (a missing package, a chip too old). Starts nothing.
        """
        return self.capabilities.reasons_against(spec, device)

    def screen(self, spec: AttentionSpec, arch: str) -> list[CompiledKernel] | None:
        """What the kernels for `spec` take on `arch` ("sm_90"), by compiling ahead of time; needs no such chip.

        None: this backend cannot say, or does not know the chip. May take seconds a kernel.
        """
        return None

    def facts(self) -> dict[str, str | int | float]:
        """What this object chose by itself (instructions, compiled or not), for the results. Default: nothing.

        Asked after the work; kernel mode and serve keep each as `backend_<name>`.
        """
        return {}

    def setup(self, spec: AttentionSpec, device: str) -> None:
        """Called once, after `check` found nothing. Allocate workspaces here. An override calls this one first.

        Raises:
            Unsupported: `check` finds reasons against it; they are listed.
        """
        reasons = self.check(spec, device)
        if reasons:
            raise Unsupported(f"{type(self).__name__} cannot serve {spec} on {device}: " + "; ".join(reasons))
        self.spec = spec

    def plan(self, batch: Batch) -> None:  # noqa: B027
        """Called once a step, before the layers: what depends on lengths but not on values."""

    @abstractmethod
    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        """Write softmax(q k^T * scale) v, causally masked, into `out`.

        Args:
            q: (T, H, D). Queries of all rows, packed in row order. May be non-contiguous in T. Of a latent cache the
                queries are in its space: a row's latent, then its rotated key.
            pool: only slots below each row's context length are read; all others may hold NaN.
            out: (T, H, V), dtype of q. Overwritten; must not alias q. Rows of context 0 give zeros.
            lse: (T, H) float32 or None: natural log of the softmax's denominator, a sink included; -inf where
                context is 0.

        Raises:
            Unsupported: outside `capabilities`. Nothing was written.
            InvalidArgument: shapes that are not the spec's, or `max_context_len` beyond the table's width.

        Source: Kwon et al. 2023, arXiv:2309.06180 section 4.1. Oracle: framework_testing.oracles.attend_dense.
        """

    def require(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, lse: Tensor | None = None) -> None:
        """Refuse what `attend` must refuse, from shapes and host integers alone: no synchronisation. O(1).

        Raises:
            Unsupported, InvalidArgument: as `attend`.
        """
        spec = self.spec
        if lse is not None and "lse" not in self.capabilities.features:
            raise Unsupported(f"{type(self).__name__} does not return the log-sum-exp")
        given = (str(q.dtype).removeprefix("torch."), pool.layout, pool.block_size, *q.shape[1:])
        asked = (spec.dtype, spec.layout, spec.block_size, spec.num_heads, spec.head_dim)
        if given != asked:
            raise Unsupported(
                f"{type(self).__name__} was set up for (dtype, layout, block size, heads, head dim) {asked}, "
                f"got {given}"
            )
        asked_out = (*q.shape[:2], spec.value_dim)
        if tuple(out.shape) != asked_out or out.dtype != q.dtype:
            raise InvalidArgument(f"out is {tuple(out.shape)} {out.dtype}; it must be {asked_out} {q.dtype}")
        capacity = batch.block_tables.shape[1] * spec.block_size
        if batch.max_context_len > capacity:
            raise InvalidArgument(
                f"a context of {batch.max_context_len} tokens passes the block table's width: "
                f"{batch.block_tables.shape[1]} blocks of {spec.block_size} hold {capacity}; widen the table"
            )

    def write(self, pool: LayerKV, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Store k, v (T, K, D) at `slot_mapping` (T,) int64; negative slots are skipped.

        `attend` of any row of the step may read them: rows admitted together share blocks that one of them writes.
        Of a latent cache k (T, 1, D) are the rows, and v, a view of them, is not stored.
        """
        from framework.interfaces import torch_ops

        torch_ops.write(pool, k, v, slot_mapping)

    def rotate_and_write(
        self, pool: LayerKV, q: Tensor, k: Tensor, v: Tensor, rope: Rope, slot_mapping: Tensor
    ) -> Tensor:
        """`write` with k rotated by `rope`; returns q rotated, as `attend` takes it.

        q (T, H, D), k and v (T, K, D) may be non-contiguous in T and stay as they are. Rotation is in float32 at least,
        rounded once to their dtype; k may go to a narrower pool from either. The default rotates by torch and calls
        `write`; a backend that does both in one pass declares the feature "rope".
        """
        from framework.interfaces import torch_ops

        self.write(pool, torch_ops.rotate(k, rope), v, slot_mapping)
        return torch_ops.rotate(q, rope)

    def copy_blocks(self, pool: LayerKV, copies: Tensor) -> None:
        """For each row (source, destination) of `copies` (n, 2) int64, in order: copy all that one block has.

        `copies` lies on the pool's device or, as the engine gives it, on the host: to check it then costs no wait.
        """
        from framework.interfaces import torch_ops

        torch_ops.copy_blocks(pool, copies)

    def write_index(self, pool: LayerKV, keys: Tensor, slot_mapping: Tensor) -> None:
        """Store an indexer's keys (T, `index_dim`) at `slot_mapping` (T,) int64; negative slots are skipped."""
        from framework.interfaces import torch_ops

        torch_ops.write_index(pool, keys, slot_mapping)

    def select(self, q: Tensor, weights: Tensor, pool: LayerKV, batch: Batch, count: int) -> Tensor:
        """The slots (T, min(count, `max_context_len`)) int32 of the tokens that each query is to attend to.

        Of the C positions a query sees, the `count` with the highest sum over heads of weights * relu(q . key), of
        equal ones the first; all of them where they are no more. A query's first min(C, count) entries are slots, in
        any order, the others 0: they are a block table for blocks of one token. Reads the lengths on the host.

        Args:
            q: (T, heads, `index_dim`), of the indexer, scaled. weights: (T, heads).

        Source: DeepSeek-V3.2, arXiv:2512.02556 section 2.1.
        """
        from framework.interfaces import torch_ops

        return torch_ops.select(q, weights, pool, batch, count)


class DenseBackend(AttentionBackend):
    """The short base class: `attend_one`, attention of one row over its own dense K and V, gathered row by row.

    To try an idea, not for speed. Name the features it supports in `capabilities`.
    """

    @abstractmethod
    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, row: Row) -> Tensor:
        """One row's output (Tq, H, V), dtype of q.

        Args:
            q: (Tq, H, D), the last Tq positions of the context.
            k, v: (C, K, D) and (C, K, V), dtype of q. Query head h reads kv head h // (H / K).
            row: lengths, mask and parameters.
        """

    def gather(self, pool: LayerKV, block_table: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """K (C, K, D) and V (C, K, V) of a row's first `context` tokens, in the pool's dtype; a copy.

        `block_table` (M,) int32 is the row's.
        """
        from framework.interfaces import torch_ops

        return torch_ops.gather(pool, block_table, context)

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        self.require(q, pool, batch, out, lse)
        starts, contexts = batch.host_query_starts.tolist(), batch.host_context_lens.tolist()
        for row, context in enumerate(contexts):
            first, last = starts[row], starts[row + 1]
            if context == 0:
                out[first:last] = 0
                continue
            k, v = self.gather(pool, batch.block_tables[row], context)
            facts = Row(self.spec, context, last - first, pool.sinks, pool.alibi_slopes)
            out[first:last] = self.attend_one(q[first:last], k, v, facts)
