"""Long chunks of prompts on the CPU: a row's keys and values side by side, then torch's flash attention."""

# Shapes: T query tokens (packed)  N blocks  S tokens a block  H query heads  K kv heads  G = H / K  D head dim
#         C context tokens that are read

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from framework.interfaces.backend import AttentionSpec, LayerKV

if TYPE_CHECKING:
    from torch import Tensor

MIN_QUERIES = 16
"""Query tokens of a row from which copying its keys together costs less than reading them block by block."""
_TILE = 256
"""Queries of a chunk that share a mask: keys after the last of them, or before the first one's window, are not read."""


def suits(spec: AttentionSpec) -> bool:
    """Whether torch's kernel computes this attention: it has neither soft cap nor ALiBi.

    One head alone is left out: its only piece of work would be shared among threads, and its bits depend on them.
    """
    return spec.soft_cap is None and not spec.alibi and spec.num_heads > 1


def attend_row(
    q: Tensor, pool: LayerKV, spec: AttentionSpec, blocks: Tensor, context: int, out: Tensor, lse: Tensor | None
) -> None:
    """Write one row's attention; its queries are the last of its context.

    The cut depends on the row's own lengths alone, and torch computes each piece on one thread: the output depends
    neither on the batch nor on the number of threads.

    Args:
        q, out: (T, H, D) of this row.
        blocks: (M,) int64, the row's block table.
        context: tokens, these T included.
        lse: (T, H) float32 or None.
    """
    num_queries, window = len(q), spec.sliding_window
    if num_queries == context and (window is None or window >= context):
        k, v = _keys_and_values(pool, spec, blocks, 0, context)
        _write(q, k, v, pool.sinks, spec, None, out, lse)
        return
    base = context - num_queries
    start = 0 if window is None else max(0, base + 1 - window)
    k, v = _keys_and_values(pool, spec, blocks, start, context)
    for first in range(0, num_queries, _TILE):
        last = min(first + _TILE, num_queries)
        begin = start if window is None else max(start, base + first + 1 - window)
        keys = slice(begin - start, base + last - start)
        mask = _mask(range(base + first, base + last), range(begin, base + last), window, q.dtype)
        own = None if lse is None else lse[first:last]
        _write(q[first:last], k[:, :, keys], v[:, :, keys], pool.sinks, spec, mask, out[first:last], own)


def _keys_and_values(pool: LayerKV, spec: AttentionSpec, blocks: Tensor, start: int, end: int) -> list[Tensor]:
    """Tokens start to end - 1 as (K, G, C, D): copied together head by head, and seen by each head of a group."""
    size = spec.block_size
    first = start // size
    ids = blocks[first : -(-end // size)]
    found = []
    for cache, scale in ((pool.k, pool.k_scale), (pool.v, pool.v_scale)):
        heads = cache.shape[2 if pool.layout == "NHD" else 1]
        read = _read(cache, scale, ids, spec, pool.layout)
        if pool.layout == "NHD":
            tokens = read.reshape(-1, heads, spec.head_dim).transpose(0, 1)
        else:
            tokens = read.transpose(0, 1).reshape(heads, -1, spec.head_dim)
        tokens = tokens[:, start - first * size : end - first * size]
        if tokens.dtype != torch.float32:  # torch's matrix products of two bytes are slower over gaps
            tokens = tokens.contiguous()
        found.append(tokens[:, None].expand(-1, spec.num_heads // heads, -1, -1))
    return found


def _read(cache: Tensor, scale: Tensor | None, ids: Tensor, spec: AttentionSpec, layout: str) -> Tensor:
    """These blocks of a pool as the model's dtype: what is stored, times its scale."""
    if spec.kv_dtype in (None, spec.dtype):
        return cache[ids]
    wide = cache.view(torch.uint8)[ids].view(cache.dtype) if cache.dtype.itemsize == 1 else cache[ids]
    numbers = wide.float()
    if scale is not None:
        own = scale[ids][..., None] if scale.dim() > 1 else scale[:, None] if layout == "NHD" else scale[:, None, None]
        numbers = numbers * own
    return numbers.to(getattr(torch, spec.dtype))


def _mask(queries: range, keys: range, window: int | None, dtype: torch.dtype) -> Tensor:
    """(1, 1, queries, keys): 0 where a query sees a key, -inf elsewhere."""
    distance = torch.arange(queries.start, queries.stop)[:, None] - torch.arange(keys.start, keys.stop)
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return torch.zeros(1, 1, *hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _write(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, spec: AttentionSpec, mask: Tensor | None, out: Tensor,
    lse: Tensor | None,
) -> None:  # fmt: skip
    """Attend with k and v (K, G, C, D), causally if there is no mask; a sink takes its share of each row afterwards."""
    rows = (len(q), *k.shape[:2])
    found, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.view(*rows, -1).permute(1, 2, 0, 3), k, v, 0.0, mask is None, attn_mask=mask, scale=spec.softmax_scale
    )
    found = found.permute(2, 0, 1, 3).flatten(1, 2)
    sums = sums.permute(2, 0, 1).flatten(1, 2)
    if sinks is not None:
        total = torch.logaddexp(sums, sinks.float())
        found = found * (sums - total).exp()[..., None]
        sums = total
    out.copy_(found)
    if lse is not None:
        lse.copy_(sums)
