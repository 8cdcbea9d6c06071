"""The backend Int8Reader: reads K and V as int8, and says what that loses."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from framework.interfaces.backend import Capabilities, Loss, Row
from torch import Tensor

from framework_example.backend import PlainSoftmax


class Int8Reader(PlainSoftmax):
    """Exact attention over K and V rounded to int8, with one scale a token and head.

    An idea to be measured, not a faster kernel: the pool stays as it is, and what reading it in a quarter of the bytes
    would cost in accuracy stands in the run's results.
    """

    capabilities: ClassVar[Capabilities] = replace(
        PlainSoftmax.capabilities,
        lossy=Loss(max_error=0.05, reason="K and V are read as int8, one scale a token and head"),
    )

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, row: Row) -> Tensor:
        return super().attend_one(q, rounded(k), rounded(v), row)


def rounded(x: Tensor, largest: int = 127) -> Tensor:
    """x (C, K, D) as integers of -`largest` to `largest` times a scale for each token and head, in fp32."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
    return (x / scale).round() * scale
