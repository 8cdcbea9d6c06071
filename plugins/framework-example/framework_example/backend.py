"""The backend PlainSoftmax: how attention reads the pool."""

# Shapes: Tq queries of one row  C its context  H query heads  K kv heads  D head dim

from __future__ import annotations

from typing import ClassVar

import torch
from framework.interfaces.backend import Capabilities, DenseBackend, Row
from torch import Tensor


class PlainSoftmax(DenseBackend):
    """Plain softmax attention in fp32, row by row."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        devices=frozenset({"cpu", "cuda"}),
        layouts=frozenset({"NHD", "HND"}),
        features=frozenset({"sliding_window"}),
        batch_invariant=True,
    )

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, row: Row) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))  # (C, H, D)
        scores = torch.einsum("qhd,chd->hqc", q.float(), k) * row.spec.softmax_scale
        scores.masked_fill_(~row.visible(q.device), float("-inf"))
        return torch.einsum("hqc,chd->qhd", scores.softmax(dim=-1), v).to(q.dtype)
