"""Paged attention by torch's own varlen_attn: flash attention on CUDA without another package."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, ClassVar

from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, Capabilities, LayerKV

if TYPE_CHECKING:
    from torch import Tensor

_PAGE = 256


class VarlenBackend(AttentionBackend):
    """One call for decode rows and chunks; torch 2.13 or newer, blocks of a multiple of 256 tokens.

    Source: torch.nn.attention.varlen.varlen_attn_out; its paged kernel is flash-attn 2's.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float16", "bfloat16"}),
        devices=frozenset({"cuda"}),
        head_dims=frozenset(range(32, 257, 32)),
        block_size_multiple_of=_PAGE,
        features=frozenset({"sliding_window"}),
        graph_safe=True,
    )

    def __init__(self) -> None:
        self._planned: Batch | None = None

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        """Also a torch without it, and no device."""
        reasons = self.capabilities.reasons_against(spec, device)
        reasons += _torch_reasons()
        if device.split(":")[0] == "cuda":
            import torch

            if not torch.cuda.is_available():
                reasons.append("no CUDA device")
            elif torch.cuda.get_device_capability(device) < (8, 0):
                reasons.append(f"device {device} is older than compute capability 8.0")
        return reasons

    def plan(self, batch: Batch) -> None:
        """Where the rows' keys would begin, (B + 1,) int32, on the device."""
        ends = batch.context_lens.cumsum(0).int()
        self._key_starts = ends.new_zeros(len(ends) + 1)
        self._key_starts[1:] = ends
        self._planned = batch

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        """Writes straight into `out`."""
        from torch.nn.attention.varlen import varlen_attn_out

        self.require(q, pool, batch, out, lse)
        if self._planned is not batch:
            self.plan(batch)
        spec = self.spec
        varlen_attn_out(
            out,
            q,
            pool.k,
            pool.v,
            batch.query_starts,
            self._key_starts,
            batch.max_query_len,
            batch.max_context_len,
            scale=spec.softmax_scale,
            window_size=(-1 if spec.sliding_window is None else spec.sliding_window - 1, 0),
            enable_gqa=spec.num_heads != spec.num_kv_heads,
            seqused_k=batch.context_lens,
            block_table=batch.block_tables,
        )


def _torch_reasons() -> list[str]:
    import torch

    if importlib.util.find_spec("torch.nn.attention.varlen") is None or _version(torch.__version__) < (2, 13):
        return [f"torch {torch.__version__} has no paged varlen_attn: pip install 'torch>=2.13'"]
    return []


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
