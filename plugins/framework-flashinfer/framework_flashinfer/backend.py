"""Paged attention by FlashInfer's wrappers, planned once a step."""

# Shapes: T query tokens (packed)  B rows  M blocks a table row  S tokens a block  H query heads  D head dim

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, Capabilities, LayerKV

if TYPE_CHECKING:
    from torch import Tensor

_LN2 = math.log(2.0)
_SM_75 = (7, 5)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one wrapper: it is planned, and these are its tokens."""

    wrapper: Any
    tokens: slice


class FlashInferBackend(AttentionBackend):
    """Decode rows through the decode wrapper, chunks through the prefill wrapper; lengths are read on the host.

    Args:
        workspace_bytes: of device memory, for FlashInfer's partial results.

    Source: Ye et al. 2025, arXiv:2501.01005; flashinfer-python 0.7 decode.py and prefill.py.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float16", "bfloat16"}),
        devices=frozenset({"cuda"}),
        head_dims=frozenset({64, 128, 256}),
        layouts=frozenset({"NHD", "HND"}),
        features=frozenset({"sliding_window", "soft_cap", "lse"}),
    )

    def __init__(self, workspace_bytes: int = 128 * 2**20) -> None:
        if workspace_bytes < 1:
            raise InvalidArgument(f"workspace_bytes must be at least 1, found {workspace_bytes}")
        self._workspace_bytes = workspace_bytes
        self._wrappers: tuple[Any, Any] | None = None
        self._planned: Batch | None = None

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        """Also a missing package, and a chip too old. Imports nothing of FlashInfer."""
        reasons = self.capabilities.reasons_against(spec, device)
        if importlib.util.find_spec("flashinfer") is None:
            reasons.append("flashinfer is not installed: pip install flashinfer-python")
        if device.split(":")[0] == "cuda":
            reasons += _cuda_reasons(device)
        return reasons

    def setup(self, spec: AttentionSpec, device: str) -> None:
        """Allocate the workspace and make both wrappers; FlashInfer compiles its kernels when first planned."""
        super().setup(spec, device)
        import torch
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

        # One workspace for both: they run one after the other, on one stream.
        workspace = torch.zeros(self._workspace_bytes, dtype=torch.uint8, device=device)
        group = spec.num_heads // spec.num_kv_heads
        self._wrappers = (
            # Tensor cores pay from a group of 4: the same rule as FlashInfer's own advice.
            BatchDecodeWithPagedKVCacheWrapper(workspace, spec.layout, use_tensor_cores=group >= 4),
            BatchPrefillWithPagedKVCacheWrapper(workspace, spec.layout),
        )
        self._planned = None

    def plan(self, batch: Batch) -> None:
        """Hand each wrapper its rows' pages and lengths. Copies a few integers a block to the device."""
        if self._wrappers is None:
            raise Unsupported("FlashInferBackend was not set up; call setup(spec, device) first")
        import torch

        contexts, starts = batch.host_context_lens, batch.host_query_starts
        rows, first, tokens = len(contexts), batch.num_decodes, int(starts[-1])
        self._parts = []
        if first:
            self._wrappers[0].plan(*self._pages(batch, 0, first), **self._shapes("head_dim"))
            self._parts.append(_Part(self._wrappers[0], slice(0, first)))
        if first < rows:
            query_starts = torch.from_numpy(np.ascontiguousarray(starts[first:] - starts[first], dtype=np.int32))
            pages = self._pages(batch, first, rows)
            self._wrappers[1].plan(query_starts, *pages, causal=True, **self._shapes("head_dim_qk"))
            self._parts.append(_Part(self._wrappers[1], slice(first, tokens)))
        empty = np.nonzero(np.repeat(contexts == 0, np.diff(starts)))[0]
        self._empty = torch.from_numpy(empty).to(batch.block_tables.device) if len(empty) else None
        self._planned = batch

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        """One call a wrapper. FlashInfer's log-sum-exp is to base 2; ours is natural."""
        self.require(q, pool, batch, out, lse)
        if self._planned is not batch:
            self.plan(batch)
        for part in self._parts:
            queries, target = q[part.tokens].contiguous(), out[part.tokens]
            written = target if target.is_contiguous() else None  # straight to where it belongs: no copy
            if lse is None:
                attended = part.wrapper.run(queries, (pool.k, pool.v), out=written)
            else:
                attended, sums = part.wrapper.run(queries, (pool.k, pool.v), out=written, return_lse=True)
                lse[part.tokens] = sums * _LN2
            if written is None:
                target.copy_(attended)
        if self._empty is not None:
            out[self._empty] = 0
            if lse is not None:
                lse[self._empty] = -math.inf

    def _shapes(self, dim: str) -> dict[str, Any]:
        """The arguments that both plans share; they name the head dim differently."""
        import torch

        spec = self.spec
        dtype: torch.dtype = getattr(torch, spec.dtype)
        return {
            "num_qo_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            dim: spec.head_dim,
            "page_size": spec.block_size,
            "window_left": -1 if spec.sliding_window is None else spec.sliding_window - 1,
            "logits_soft_cap": spec.soft_cap,
            "sm_scale": spec.softmax_scale,
            "q_data_type": dtype,
            "kv_data_type": dtype,
        }

    def _pages(self, batch: Batch, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows' pages in FlashInfer's form: starts (B' + 1,) on the host, page ids, tokens in each last page."""
        import torch

        contexts = batch.host_context_lens[first:last].astype(np.int64)
        size, width = self.spec.block_size, batch.block_tables.shape[1]
        if len(contexts) and int(contexts.max()) > width * size:
            raise InvalidArgument(
                f"a row has {int(contexts.max())} tokens of context, its block table holds {width * size}: widen it"
            )
        counts = -(-contexts // size)
        ends = np.concatenate([[0], np.cumsum(counts)])
        where = _flat(counts, ends, width) + first * width
        ids = batch.block_tables.reshape(-1)[torch.from_numpy(where).to(batch.block_tables.device)]
        filled = np.where(counts > 0, contexts - (counts - 1) * size, 0)
        return torch.from_numpy(ends.astype(np.int32)), ids, torch.from_numpy(filled.astype(np.int32))


def _flat(counts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Where the rows' used entries lie in their flattened tables of `width` columns."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row * width + np.arange(int(ends[-1])) - ends[:-1][row]


def _cuda_reasons(device: str) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["no CUDA device"]
    if torch.cuda.get_device_capability(device) < _SM_75:
        return [f"device {device} is older than compute capability 7.5"]
    return []
