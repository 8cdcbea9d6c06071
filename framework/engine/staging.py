"""Copies between host and device: one up and one down a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes. Compiled kernels want 16; any dtype may begin here."""

_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.bool_): torch.bool,
}


@dataclass(slots=True)
class _Buffer:
    """Pinned host memory, and the event after which the copy out of it is done (None: copies do not run ahead)."""

    host: Tensor
    bytes: npt.NDArray[np.uint8]
    done: Any


class Staging:
    """Packs host arrays into pinned memory and copies them to the device in one go, without waiting for it.

    Arrays lie one after another at multiples of 64 bytes: arrays of the same lengths and dtypes always land at the
    same device addresses, until the buffer grows. Two host buffers take turns, so that packing does not wait for the
    copy before. On a CPU "device" the same happens with plain memory.

    Args:
        capacity: bytes to begin with.
        fixed: never grow: addresses were captured by a graph. `room` says what still fits.

    Attributes:
        num_uploads, num_fetches: copies to the device and back so far.
    """

    def __init__(self, device: str | torch.device, capacity: int = 1 << 16, *, fixed: bool = False) -> None:
        self.device, self.fixed = torch.device(device), fixed
        self.num_uploads = self.num_fetches = 0
        self._cuda = self.device.type == "cuda"
        self._turn = 0
        self._down = torch.empty(0, dtype=torch.uint8)
        self._allocate(capacity)

    @property
    def capacity(self) -> int:
        """Bytes of one upload, padding between arrays included."""
        return len(self._device)

    def upload(self, *arrays: npt.NDArray[Any]) -> list[Tensor]:
        """The arrays (any shape; int64, int32, float64 or bool) on the device, valid until the next upload.

        The copy is queued on the current stream; nobody waits.
        """
        places, end = layout(*arrays)
        if end > self.capacity:
            assert not self.fixed, f"{end} bytes asked of a fixed staging buffer of {self.capacity}"
            self._allocate(max(end, 2 * self.capacity))
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        if buffer.done is not None:
            buffer.done.synchronize()
        for array, place in zip(arrays, places, strict=True):
            buffer.bytes[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._device[:end].copy_(buffer.host[:end], non_blocking=True)
        if buffer.done is not None:
            buffer.done.record(torch.cuda.current_stream(self.device))
        self.num_uploads += 1
        return [self.view(array, place) for array, place in zip(arrays, places, strict=True)]

    def view(self, like: npt.NDArray[Any], place: int) -> Tensor:
        """The device's memory from byte `place` on, with the shape and dtype of `like`."""
        return self._device[place : place + like.nbytes].view(_DTYPES[like.dtype]).view(like.shape)

    def fetch(self, tensor: Tensor) -> npt.NDArray[Any]:
        """`tensor` on the host, in one copy. The only place where a step waits for the device."""
        self.num_fetches += 1
        if not self._cuda:
            values: npt.NDArray[Any] = tensor.detach().numpy()
            return values
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()
        if len(self._down) < size:
            self._down = torch.empty(2 * size, dtype=torch.uint8, pin_memory=True)
        landed = self._down[:size].view(tensor.dtype).view(tensor.shape)
        landed.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()
        copied: npt.NDArray[Any] = landed.numpy().copy()
        return copied

    def _allocate(self, capacity: int) -> None:
        capacity = -(-capacity // _ALIGNMENT) * _ALIGNMENT
        self._device = torch.zeros(capacity, dtype=torch.uint8, device=self.device)
        self._turn, self._buffers = 0, list[_Buffer]()
        for _ in range(2 if self._cuda else 1):
            host = torch.zeros(capacity, dtype=torch.uint8, pin_memory=self._cuda)
            done = torch.cuda.Event() if self._cuda else None  # type: ignore[no-untyped-call]
            self._buffers.append(_Buffer(host, host.numpy(), done))


def layout(*arrays: npt.NDArray[Any]) -> tuple[list[int], int]:
    """Where each array of an upload begins, and where the last one ends, in bytes."""
    places, end = [], 0
    for array in arrays:
        places.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end
