"""Tensors as the kernels take them: layouts, strides, descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import Tensor


def as_stored(stored: Tensor) -> Tensor:
    """The pool as the kernels take it: e4m3 and int8 as bytes."""
    if stored.stride(-1) != 1:
        raise InvalidArgument(f"the head dim of a KV pool must be contiguous, found strides {stored.stride()}")
    if stored.element_size() == 1:
        import torch

        return stored.view(torch.uint8)
    return stored


def descriptors_can(stored: Tensor) -> bool:
    """What the hardware asks of a pool: 16-byte alignment of its start and of all its strides."""
    size = stored.element_size()
    return stored.data_ptr() % 16 == 0 and all(stride * size % 16 == 0 for stride in stored.stride()[:-1])


def descriptor(stored: Tensor, tokens: int, layout: str) -> Any:
    """Tiles of one head's `tokens` tokens within a block."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    block = [1, tokens, 1] if layout == "NHD" else [1, 1, tokens]
    return TensorDescriptor(stored, list(stored.shape), list(stored.stride()), [*block, stored.shape[-1]])


def strides(stored: Tensor, layout: str) -> tuple[int, int, int]:
    """Elements from block to block, token to token, head to head, of K or V or of their scales."""
    block, second, third = stored.stride()[:3]
    return (block, second, third) if layout == "NHD" else (block, third, second)


def token_strides(x: Tensor | None) -> tuple[int, int]:
    """Elements from token to token, head to head."""
    return (0, 0) if x is None else (x.stride(0), x.stride(1))


def require(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """The kernels trust shapes: what is too small would be read or written beyond its end."""
    if tuple(x.shape) != shape:
        raise InvalidArgument(f"{name} is {tuple(x.shape)}, should be {shape}")


def dense(x: Tensor, axis: int) -> Tensor:
    """`x`, or a copy of it, whose elements lie side by side along its last axis."""
    return x if x.stride(axis) == 1 else x.contiguous()
