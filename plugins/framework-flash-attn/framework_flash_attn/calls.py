"""Calls of paged attention, one class for each version of flash-attn; each imports its package when it is made."""

# Shapes: T query tokens (packed)  B rows  H query heads  D head dim

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework_flash_attn.versions import TILE

if TYPE_CHECKING:
    from framework.interfaces.backend import AttentionSpec, Batch, LayerKV
    from torch import Tensor

Found = tuple["Tensor", Any]
"""(T, H, D) of q's dtype, and the natural log-sum-exp (T, H) float32 when it was asked for, else None."""


class Version2:
    """flash_attn 2.8: decode rows through the kernel that splits long rows, the rest as one varlen call."""

    def __init__(self, spec: AttentionSpec) -> None:
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        self._decode, self._varlen = flash_attn_with_kvcache, flash_attn_varlen_func
        self._shared = {"softmax_scale": spec.softmax_scale, "causal": True, "softcap": spec.soft_cap or 0.0}
        self._shared["window_size"] = (-1 if spec.sliding_window is None else spec.sliding_window - 1, -1)

    def plan(self, batch: Batch) -> None:
        """Where the chunk rows' queries and keys begin, (B' + 1,) int32, on the device."""
        first = batch.num_decodes
        self._starts = (batch.query_starts[first:] - first).int()
        ends = batch.context_lens[first:].cumsum(0).int()
        self._key_starts = ends.new_zeros(len(ends) + 1)
        self._key_starts[1:] = ends
        self._planned = batch

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, with_lse: bool) -> Found:
        import torch

        if getattr(self, "_planned", None) is not batch:
            self.plan(batch)
        first = batch.num_decodes
        parts = []
        if first:
            parts.append(self._decode_rows(q[:first], pool, batch, with_lse))
        if len(batch.context_lens) > first:
            parts.append(self._chunk_rows(q[first:], pool, batch, with_lse))
        if len(parts) == 1:
            return parts[0]
        return torch.cat([out for out, _ in parts]), torch.cat([sums for _, sums in parts]) if with_lse else None

    def _decode_rows(self, q: Tensor, pool: LayerKV, batch: Batch, with_lse: bool) -> Found:
        first = batch.num_decodes
        attended = self._decode(
            q[:, None],
            pool.k,
            pool.v,
            cache_seqlens=batch.context_lens[:first],
            block_table=batch.block_tables[:first],
            return_softmax_lse=with_lse,
            **self._shared,
        )
        return (attended[0][:, 0], attended[1][:, :, 0]) if with_lse else (attended[:, 0], None)

    def _chunk_rows(self, q: Tensor, pool: LayerKV, batch: Batch, with_lse: bool) -> Found:
        attended = self._varlen(
            q,
            pool.k,
            pool.v,
            cu_seqlens_q=self._starts,
            cu_seqlens_k=self._key_starts,
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_context_len,
            block_table=batch.block_tables[batch.num_decodes :],
            return_attn_probs=with_lse,
            **self._shared,
        )
        return (attended[0], attended[1].transpose(0, 1)) if with_lse else (attended, None)


class Version3:
    """flash_attn_interface (Hopper): decode rows and chunks in one call, scheduled once a step for all layers.

    NOTE. Chunks of pages that hold whole key tiles are loaded by TMA, unused slots too, and 0 times a NaN in V is NaN.
    With `cache_leftpad`, here zeros, the kernel loads tokens by cp.async instead, which puts zeros behind the last one
    (read in hopper/flash_api.cpp, get_pagedkv_tma, and paged_kv.h, load_V; not run).
    """

    def __init__(self, spec: AttentionSpec) -> None:
        from flash_attn_interface import flash_attn_with_kvcache, get_scheduler_metadata

        self._call, self._schedule, self._spec = flash_attn_with_kvcache, get_scheduler_metadata, spec
        self._shared = {"softmax_scale": spec.softmax_scale, "causal": True, "softcap": spec.soft_cap or 0.0}
        self._shared["window_size"] = (-1 if spec.sliding_window is None else spec.sliding_window - 1, -1)

    def plan(self, batch: Batch) -> None:
        """The kernel's schedule for these lengths, made on the device, where a CUDA graph makes it anew."""
        import torch

        spec, lengths = self._spec, batch.context_lens
        whole = batch.max_query_len > 1 and spec.block_size >= TILE
        self._left = torch.zeros_like(lengths) if whole else None
        self._metadata = self._schedule(
            len(lengths),
            batch.max_query_len,
            batch.block_tables.shape[1] * spec.block_size,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            lengths,
            qkv_dtype=getattr(torch, spec.dtype),
            cu_seqlens_q=batch.query_starts,
            cache_leftpad=self._left,
            page_size=spec.block_size,
            causal=True,
            window_size=self._shared["window_size"],
            has_softcap=spec.soft_cap is not None,
        )
        self._planned = batch

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, with_lse: bool) -> Found:
        if getattr(self, "_planned", None) is not batch:
            self.plan(batch)
        attended = self._call(
            q,
            pool.k,
            pool.v,
            cache_seqlens=batch.context_lens,
            cache_leftpad=self._left,
            page_table=batch.block_tables,
            cu_seqlens_q=batch.query_starts,
            max_seqlen_q=batch.max_query_len,
            scheduler_metadata=self._metadata,
            return_softmax_lse=with_lse,
            **self._shared,
        )
        return (attended[0], attended[1].transpose(0, 1)) if with_lse else (attended, None)


class Version4:
    """flash_attn.cute: decode rows and chunks in one call; its window has None where the others have -1.

    NOTE. `num_splits` is not passed, so that any release and chip takes the call; which of them split is not confirmed.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        from flash_attn.cute.interface import flash_attn_varlen_func

        self._call = flash_attn_varlen_func
        self._shared = {"softmax_scale": spec.softmax_scale, "causal": True, "softcap": spec.soft_cap or 0.0}
        self._shared["window_size"] = (None if spec.sliding_window is None else spec.sliding_window - 1, None)
        if spec.sliding_window is not None:
            self._shared |= {"causal": False, "window_size": (spec.sliding_window - 1, 0)}

    def plan(self, batch: Batch) -> None:
        """Nothing: the call takes the batch as it is."""

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, with_lse: bool) -> Found:
        out, sums = self._call(
            q,
            pool.k,
            pool.v,
            cu_seqlens_q=batch.query_starts,
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_context_len,
            seqused_k=batch.context_lens,
            page_table=batch.block_tables,
            return_lse=with_lse,
            **self._shared,
        )
        return out, sums.transpose(0, 1) if with_lse else None
