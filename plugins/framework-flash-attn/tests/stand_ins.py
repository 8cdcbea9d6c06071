"""flash-attn's three paged interfaces as they are documented, computed by torch: signatures, shapes and layouts.

Signatures: flash_attn 2.8.3 flash_attn_interface.py; hopper/flash_attn_interface.py; flash_attn 4.0.0b36
cute/interface.py. Only the arguments a paged forward may take are here: anything else is a TypeError.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType

import torch

TILE_3 = 64  # keys of version 3's smallest tile


def attend_row(q, k_cache, v_cache, table, length, scale, left, right, softcap):
    """q (n, H, D) at the end of `length` cached tokens: out (n, H, D), lse (H, n); the mask is bottom-right."""
    count, heads = q.shape[:2]
    if length == 0:
        return torch.zeros_like(q), torch.full((heads, count), math.inf)
    size = k_cache.shape[1]
    pages = table[: -(-length // size)].long()
    k, v = (
        cache[pages].flatten(0, 1)[:length].repeat_interleave(heads // cache.shape[2], 1).float()
        for cache in (k_cache, v_cache)
    )
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    position, key = torch.arange(length - count, length)[:, None], torch.arange(length)[None]
    hidden = torch.zeros(count, length, dtype=torch.bool)
    if right is not None and right >= 0:
        hidden |= key > position + right
    if left is not None and left >= 0:
        hidden |= key < position - left
    scores = scores.masked_fill(hidden, -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype), scores.logsumexp(-1)


def _sides(window_size, causal):
    left, right = window_size
    return left, 0 if causal else right


def with_kvcache_2(
    q,
    k_cache,
    v_cache,
    *,
    cache_seqlens,
    block_table,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    num_splits=0,
    return_softmax_lse=False,
):
    assert q.dim() == 4
    assert block_table.dtype == cache_seqlens.dtype == torch.int32
    assert k_cache.shape[1] % 256 == 0, "page size must be a multiple of 256"
    left, right = _sides(window_size, causal)
    rows = [
        attend_row(q[b], k_cache, v_cache, block_table[b], int(cache_seqlens[b]), softmax_scale, left, right, softcap)
        for b in range(len(q))
    ]
    out = torch.stack([out for out, _ in rows])
    return (out, torch.stack([lse for _, lse in rows])) if return_softmax_lse else out


def varlen_2(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    return_attn_probs=False,
    block_table=None,
):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
    assert k.shape[1] % 256 == 0, "page size must be a multiple of 256"
    lengths = cu_seqlens_k.diff()
    assert int(lengths.max()) <= max_seqlen_k
    out, lse = _packed(
        q, k, v, cu_seqlens_q, lengths, block_table, max_seqlen_q, softmax_scale, window_size, causal, softcap
    )
    return (out, lse, None) if return_attn_probs else out


def with_kvcache_3(
    q,
    k_cache,
    v_cache,
    *,
    cache_seqlens,
    cache_leftpad=None,
    page_table,
    cu_seqlens_q,
    max_seqlen_q,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    scheduler_metadata=None,
    num_splits=0,
    return_softmax_lse=False,
):
    width = page_table.shape[1] * k_cache.shape[1]
    asked = [len(cache_seqlens), max_seqlen_q, width, *q.shape[1:2], *k_cache.shape[2:], cache_leftpad is not None]
    assert scheduler_metadata[: len(asked)].tolist() == asked, "the schedule is of another call"
    assert torch.equal(scheduler_metadata[len(asked) :], cache_seqlens), "the schedule is of other lengths"
    out, lse = _packed(
        q,
        k_cache,
        v_cache,
        cu_seqlens_q,
        cache_seqlens,
        page_table,
        max_seqlen_q,
        softmax_scale,
        window_size,
        causal,
        softcap,
    )
    by_tma = cache_leftpad is None and k_cache.shape[1] % TILE_3 == 0 and max_seqlen_q > 1
    for b, length in enumerate(cache_seqlens.tolist()):
        unused = length % k_cache.shape[1]
        if by_tma and unused:  # whole pages are loaded, and 0 times NaN is NaN
            page = v_cache[page_table[b, length // k_cache.shape[1]], unused:]
            out[cu_seqlens_q[b] : cu_seqlens_q[b + 1]] += 0 * page.sum()
    return (out, lse) if return_softmax_lse else out


def get_scheduler_metadata(
    batch_size,
    max_seqlen_q,
    max_seqlen_k,
    num_heads_q,
    num_heads_kv,
    headdim,
    cache_seqlens,
    qkv_dtype=torch.bfloat16,
    cu_seqlens_q=None,
    cache_leftpad=None,
    page_size=None,
    causal=False,
    window_size=(-1, -1),
    has_softcap=False,
    num_splits=0,
):
    """What it was made for: the numbers, then the lengths."""
    assert causal
    assert page_size
    assert cu_seqlens_q.dtype == cache_seqlens.dtype == torch.int32
    assert len(cu_seqlens_q) == batch_size + 1
    numbers = [batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_leftpad is not None]
    return torch.cat([torch.tensor(numbers, dtype=torch.int32), cache_seqlens])


def varlen_4(
    q,
    k,
    v,
    cu_seqlens_q=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    seqused_k=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    softcap=0.0,
    return_lse=False,
):
    assert not (causal and window_size != (None, None)), "a causal window is a local mask with 0 to the right"
    assert int(seqused_k.max()) <= max_seqlen_k
    return _packed(
        q, k, v, cu_seqlens_q, seqused_k, page_table, max_seqlen_q, softmax_scale, window_size, causal, softcap
    )


def _packed(q, k, v, starts, lengths, tables, max_q, scale, window_size, causal, softcap):
    assert starts.dtype == lengths.dtype == tables.dtype == torch.int32
    assert len(starts) == len(lengths) + 1 == len(tables) + 1
    assert int(starts.diff().max()) <= max_q
    left, right = _sides(window_size, causal)
    rows = [
        attend_row(q[starts[b] : starts[b + 1]], k, v, tables[b], int(lengths[b]), scale, left, right, softcap)
        for b in range(len(lengths))
    ]
    return torch.cat([out for out, _ in rows]), torch.cat([lse for _, lse in rows], dim=1)


def modules() -> dict[str, ModuleType]:
    """For sys.modules."""
    two, three, cute, four = (
        ModuleType(name)
        for name in ("flash_attn", "flash_attn_interface", "flash_attn.cute", "flash_attn.cute.interface")
    )
    two.flash_attn_with_kvcache, two.flash_attn_varlen_func = with_kvcache_2, varlen_2
    three.flash_attn_with_kvcache, three.get_scheduler_metadata = with_kvcache_3, get_scheduler_metadata
    four.flash_attn_varlen_func = varlen_4
    two.__path__ = cute.__path__ = []
    return {module.__name__: module for module in (two, three, cute, four)}


def install(patch) -> None:
    """Put the stand-ins where the packages would be, for one test."""
    for name, module in modules().items():
        patch.setitem(sys.modules, name, module)
