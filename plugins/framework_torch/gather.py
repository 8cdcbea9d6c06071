"""Attention over blocks gathered one by one in Python: what everybody writes first."""

# Shapes: Tq queries of one row  C context length  H query heads  K kv heads  D head dim  V value dim  G = H / K

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from framework.interfaces.backend import Batch, Capabilities, DenseBackend, LayerKV, Row

if TYPE_CHECKING:
    from torch import Tensor


class GatherBackend(DenseBackend):
    """Copies every row block by block into a padded buffer, repeats the kv heads, and takes a dense softmax.

    The naive baseline the others are measured against: correct everywhere and slow.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        devices=frozenset({"cpu", "cuda"}),
        layouts=frozenset({"NHD", "HND"}),
        features=frozenset({"sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi", "latent"}),
        batch_invariant=True,
    )

    def plan(self, batch: Batch) -> None:
        self._longest = batch.max_context_len

    def gather(self, pool: LayerKV, block_table: Tensor, context: int) -> tuple[Tensor, Tensor]:
        size = pool.block_size
        blocks = block_table[: -(-context // size)].tolist()
        heads, dim = self.spec.num_kv_heads, self.spec.head_dim
        padded = max(len(blocks), -(-self._longest // size)) * size
        pair = [(pool.k, pool.k.new_zeros(padded, heads, dim))]
        if not pool.is_latent:
            pair.append((pool.v, pool.v.new_zeros(padded, heads, dim)))
        for index, block in enumerate(blocks):
            for stored, dense in pair:
                tokens = stored[block] if pool.layout == "NHD" else stored[block].transpose(0, 1)
                dense[index * size : (index + 1) * size] = tokens
        k, v = pair[0][1][:context], pair[-1][1][:context]
        return k, v[..., : self.spec.value_dim]

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, row: Row) -> Tensor:
        import torch

        spec = row.spec
        group = spec.num_heads // spec.num_kv_heads
        q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        scores = (q @ k.transpose(1, 2)).float() if q.dtype.itemsize < 4 else q @ k.transpose(1, 2)
        scores = scores * spec.softmax_scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        if row.alibi_slopes is not None:
            query, key = row.positions(q.device)
            scores = scores + row.alibi_slopes.to(scores)[:, None, None] * (key - query)
        scores = scores.masked_fill(~row.visible(q.device), -torch.inf)
        if row.sinks is not None:
            sinks = row.sinks.to(scores.dtype)[:, None, None].expand(-1, row.queries, 1)
            scores = torch.cat([scores, sinks], dim=2)
        weights = scores.softmax(dim=2)[:, :, : row.context].to(q.dtype)
        return (weights @ v).transpose(0, 1)
