"""Paged attention in fp64, one row and one head at a time: slow and obvious."""

# Shapes: T query tokens (packed)  B rows  N blocks  S tokens a block  C context
#         H query heads  K kv heads  D head dim  V value dim

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from framework.interfaces.backend import AttentionSpec, Batch, LayerKV


def attend_dense(
    q: Tensor, layer_kv: LayerKV, batch: Batch, spec: AttentionSpec, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Causal softmax attention of every row, one row and one head at a time, in fp64.

    Args:
        q: (T, H, D), any float dtype.
        layer_kv: the pool. Only slots below each row's context length are read.
        batch: its tensors decide (`block_tables`, `context_lens`, `query_starts`); host copies are ignored.
        dtype: in which everything is computed; q's own shows the error that a plain PyTorch program makes.

    Returns:
        out (T, H, V) and lse (T, H) of `dtype`, on the CPU: the natural log of the softmax's denominator, a sink
        included. Rows of context 0: zeros and -inf.
    """
    sinks, slopes = layer_kv.sinks, layer_kv.alibi_slopes
    heads, group = q.shape[1], q.shape[1] // spec.num_kv_heads
    out = torch.zeros((*q.shape[:2], spec.value_dim), dtype=dtype)
    lse = torch.full(q.shape[:2], -math.inf, dtype=dtype)
    starts, contexts = batch.query_starts.tolist(), batch.context_lens.tolist()
    for row, context in enumerate(contexts):
        first, last = starts[row], starts[row + 1]
        if context == 0:
            continue
        k, v = gather_tokens(layer_kv, batch.block_tables[row].tolist(), context)
        k, v = k.cpu().to(dtype), v.cpu().to(dtype)
        queries = q[first:last].cpu().to(dtype)
        position = torch.arange(context - (last - first), context)[:, None]
        key = torch.arange(context)[None, :]
        visible = key <= position
        if spec.sliding_window is not None:
            visible &= key > position - spec.sliding_window
        if spec.attention_chunk is not None:
            visible &= key >= position - position % spec.attention_chunk
        for head in range(heads):
            score = queries[:, head] @ k[:, head // group].T * spec.softmax_scale
            if spec.soft_cap is not None:
                score = spec.soft_cap * torch.tanh(score / spec.soft_cap)
            if spec.alibi:
                assert slopes is not None, "the spec has alibi and the layer no slopes"
                score = score + slopes[head].cpu().to(dtype) * (key - position).to(dtype)
            score = score.masked_fill(~visible, -math.inf)
            if spec.sinks:
                assert sinks is not None, "the spec has sinks and the layer none"
                score = torch.cat([score, sinks[head].cpu().to(dtype).expand(len(score), 1)], dim=1)
            probability = torch.softmax(score, dim=1)[:, :context]
            out[first:last, head] = probability @ v[:, head // group]
            lse[first:last, head] = torch.logsumexp(score, dim=1)
    return out, lse


def gather_tokens(layer_kv: LayerKV, table: list[int], context: int) -> tuple[Tensor, Tensor]:
    """K (C, K, D) and V (C, K, V) of a row's first `context` tokens in the pool's dtype, descaled to fp64 when the pool
    has scales."""
    size, nhd = layer_kv.block_size, layer_kv.layout == "NHD"
    positions = torch.arange(context)
    blocks = torch.tensor(table, dtype=torch.int64)[positions // size]
    gathered = []
    for stored, scale in ((layer_kv.k, layer_kv.k_scale), (layer_kv.v, layer_kv.v_scale)):
        block, offset = blocks.to(stored.device), (positions % size).to(stored.device)
        rows = stored[block, offset] if nhd else stored[block, :, offset]
        if scale is not None and scale.dim() == 3:
            factors = scale[block, offset] if nhd else scale[block, :, offset]
            rows = rows.double() * factors.double()[:, :, None]
        elif scale is not None:
            rows = rows.float().double() * scale.double()[None, :, None]
        gathered.append(rows)
    return gathered[0], gathered[1]


def alibi_slopes_for(num_heads: int) -> Tensor:
    """The published geometric slopes, (H,) float32.

    Source: Press et al. 2021, arXiv:2108.12409 section 3; heads that are no power of 2 interleave the next power's.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return torch.tensor(slopes, dtype=torch.float32)
