"""Products, norms and rotations that layers share."""

# Shapes: T packed tokens  N heads  D head dim  I inputs  O outputs  R rotated elements of a head

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def linear(x: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
    """x (T, I) times weight (O, I) transposed, plus bias (O,): through the packed copy where there is one."""
    packed = getattr(weight, "packed", None)
    if packed is None or torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    """`plus_one`: times 1 + weight, all in float32 at least and rounded once."""
    if plus_one and weight is not None:
        wide = torch.promote_types(x.dtype, torch.float32)
        return (F.rms_norm(x.to(wide), x.shape[-1:], None, eps) * (1 + weight.to(wide))).to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rotate(x: Tensor, rope: tuple[Tensor, ...]) -> Tensor:
    """Rotate pairs (i, i + R/2) of the first R elements of x (T, N, D): x * cos + swapped halves * signed sin."""
    cos, sin, *_ = rope
    if (width := cos.shape[-1]) < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], rope), x[..., width:]), -1)
    return torch.addcmul(x * cos, x.roll(width // 2, -1), sin)
