"""An attention backend that reads K and V as int8, and says what that loses."""

from __future__ import annotations

import torch
from torch import Tensor

from framework.interfaces.backend import Capabilities, DenseBackend, Loss, Row


class Int8Reader(DenseBackend):
    """Exact attention over K and V rounded to int8, with one scale a token and head.

    An idea to be measured, not a faster kernel: the pool stays as it is, and what reading it in a quarter of the bytes
    would cost in accuracy stands in the run's results.
    """

    capabilities = Capabilities(
        dtypes=frozenset({"float32", "bfloat16"}),
        devices=frozenset({"cpu", "cuda"}),
        features=frozenset({"sliding_window"}),
        lossy=Loss(max_error=0.05, reason="K and V are read as int8, one scale a token and head"),
    )

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, row: Row) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (rounded(x.float()).repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("qhd,chd->hqc", q.float(), k) * row.spec.softmax_scale
        scores = scores.masked_fill(~row.visible(q.device), float("-inf"))
        return torch.einsum("hqc,chd->qhd", scores.softmax(-1), v).to(q.dtype)


def rounded(x: Tensor, largest: int = 127) -> Tensor:
    """x (C, K, D) as integers of -`largest` to `largest` times a scale for each token and head."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
    return (x / scale).round() * scale
