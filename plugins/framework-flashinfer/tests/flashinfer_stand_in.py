"""FlashInfer's two paged wrappers as documented, computed by torch. Signatures: flashinfer-python 0.7.2."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import torch


class _Wrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert float_workspace_buffer.dtype == torch.uint8
        self.kv_layout, self.plans = kv_layout, 0

    def _keep(self, indptr, indices, last_page_len, query_starts, causal, heads, dim, page_size, options):
        assert indptr.dtype == indices.dtype == last_page_len.dtype == query_starts.dtype == torch.int32
        assert len(indptr) == len(last_page_len) + 1 == len(query_starts)
        assert int(indptr[-1]) == len(indices)
        known = {"window_left", "logits_soft_cap", "sm_scale", "q_data_type", "kv_data_type"}
        assert set(options) <= known, f"unexpected arguments {set(options) - known}"
        self.indptr, self.indices, self.last_page_len, self.query_starts = indptr, indices, last_page_len, query_starts
        self.causal, self.heads, self.dim, self.page_size, self.options = causal, heads, dim, page_size, options
        self.plans += 1

    def run(self, q, paged_kv_cache, *, out=None, return_lse=False):
        assert q.is_contiguous()
        assert q.dtype == self.options["q_data_type"]
        assert tuple(q.shape[1:]) == (self.heads[0], self.dim)
        assert len(q) == int(self.query_starts[-1])
        rows = [self._row(q, paged_kv_cache, b) for b in range(len(self.last_page_len))]
        found = torch.cat([found for found, _ in rows])
        if out is not None:
            assert out.is_contiguous()
            assert (out.shape, out.dtype) == (found.shape, found.dtype)
            found = out.copy_(found)
        return (found, torch.cat([lse for _, lse in rows])) if return_lse else found

    def _row(self, q, caches, b):
        first, last = int(self.indptr[b]), int(self.indptr[b + 1])
        q = q[self.query_starts[b] : self.query_starts[b + 1]]
        if first == last:  # FlashInfer says nothing of rows without keys
            return torch.full_like(q, math.nan), torch.full(q.shape[:2], math.nan)
        length = (last - first - 1) * self.page_size + int(self.last_page_len[b])
        pages = self.indices[first:last].long()
        k, v = (self._tokens(cache, pages)[:length].float() for cache in caches)
        scores = torch.einsum("qhd,khd->qhk", q.float(), k) * self.options["sm_scale"]
        cap = self.options["logits_soft_cap"]
        if cap:
            scores = cap * torch.tanh(scores / cap)
        position, key = torch.arange(length - len(q), length)[:, None], torch.arange(length)[None]
        hidden = (key > position) if self.causal else torch.zeros(len(q), length, dtype=torch.bool)
        if self.options["window_left"] >= 0:
            hidden |= key < position - self.options["window_left"]
        scores = scores.masked_fill(hidden[:, None], -math.inf)
        out = torch.einsum("qhk,khd->qhd", scores.softmax(-1), v).to(q.dtype)
        return out, scores.logsumexp(-1) / math.log(2)

    def _tokens(self, cache, pages):
        tokens = cache[pages] if self.kv_layout == "NHD" else cache[pages].transpose(1, 2)
        assert tokens.shape[1:] == (self.page_size, self.heads[1], self.dim)
        return tokens.flatten(0, 1).repeat_interleave(self.heads[0] // self.heads[1], 1)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False):
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **options):
        starts = torch.arange(len(indptr), dtype=torch.int32)
        self._keep(
            indptr, indices, last_page_len, starts, False, (num_qo_heads, num_kv_heads), head_dim, page_size, options
        )


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
        num_qo_heads, num_kv_heads, head_dim_qk, page_size, causal=False, **options,
    ):  # fmt: skip
        heads = (num_qo_heads, num_kv_heads)
        pages = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._keep(*pages, qo_indptr, causal, heads, head_dim_qk, page_size, options)


def install(patch) -> None:
    """Put the stand-in where the package would be, for one test."""
    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper
    module.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper
    patch.setitem(sys.modules, "flashinfer", module)
