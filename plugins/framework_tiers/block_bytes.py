"""The bytes of the KV pool's blocks, for copies to and from the tiers below it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.errors import InvalidArgument

Bytes = npt.NDArray[np.uint8]
_GATHERED_BYTES, _MOST_GATHERED = 64 * 2**20, 64
"""Device memory for blocks on their way out: how many may wait for the bus without holding the engine's stream up."""

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


def as_bytes(blocks: Sequence[Tensor]) -> list[Tensor]:
    """Each (N + 1, ...) tensor as (N + 1, bytes) uint8, of the same memory."""
    return [part.view(len(part), -1).view(torch.uint8) for part in blocks]


def pool_bytes(parts: Sequence[Tensor]) -> HostPoolBytes | CudaPoolBytes:
    """Those of blocks of these parts, on the device they are on."""
    return CudaPoolBytes(parts) if parts[0].device.type == "cuda" else HostPoolBytes(parts)


class HostPoolBytes:
    """The bytes of blocks of a pool in the host's memory. See `framework_tiers.worker.PoolBytes`."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._parts = [part.numpy() for part in parts]
        self._ends = np.cumsum([part.shape[1] for part in self._parts]).tolist()
        self.block_bytes = int(self._ends[-1])

    def read(self, block: int, into: Bytes | None = None) -> Callable[[], Bytes]:
        data = np.concatenate([part[block] for part in self._parts], out=into)
        return lambda: data

    def allocate(self, num_bytes: int) -> memoryview:
        return np.empty(num_bytes, dtype=np.uint8).data

    def write(self, block: int, data: Bytes) -> None:
        start = 0
        for part, end in zip(self._parts, self._ends, strict=True):
            part[block] = data[start:end]
            start = end


class CudaPoolBytes:
    """The bytes of blocks of a pool on a CUDA device: copies run on streams of their own, beside the engine's.

    NOTE 1. A block lies in twice as many places as there are layers. It is gathered on the device first, and crosses
    the bus as one copy; a write crosses first and is spread out then. Both need a few blocks of device memory.
    NOTE 2. A read waits, on the device, for what the engine's stream was given before, which writes the block. The
    engine's stream waits for the end of the gathering before it does anything more, because the block may be
    overwritten next; it does not wait for the bus.
    NOTE 3. A write is spread out after what the engine's stream was given before, which may read the block's last
    content, and the thread that asks for it waits for its end: a request is given a block once its bytes are there.
    NOTE 4. Copies to and from memory that is not pinned would keep the host waiting, so none is taken: stores have
    their memory from `allocate`, or go through the transfers' buffer, which is from there as well.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._parts = list(parts)
        self._sizes = [part.shape[1] for part in self._parts]
        self.block_bytes = sum(self._sizes)
        self._device = parts[0].device
        self._engine = torch.cuda.current_stream(self._device)
        self._out, self._in, self._gathering = (_stream(self._device) for _ in range(3))
        count = min(_MOST_GATHERED, max(2, _GATHERED_BYTES // self.block_bytes))
        self._gathered = [self._on_device() for _ in range(count)]
        self._turn, self._arrived = 0, self._on_device()
        self._left: list[torch.cuda.Event | None] = [None] * count  # when what was gathered has left the device
        self._pieces = list(torch.split(self._arrived, self._sizes))
        self._in.wait_stream(self._engine)  # the memory taken just now may be what work under way gave up

    def _on_device(self) -> Tensor:
        return torch.empty(self.block_bytes, dtype=torch.uint8, device=self._device)

    def read(self, block: int, into: Bytes | None = None) -> Callable[[], Bytes]:
        if into is None:
            data = torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=True)
        else:
            data = _require_pinned(torch.from_numpy(into))
        self._turn = (self._turn + 1) % len(self._gathered)
        gathered, left = self._gathered[self._turn], self._left[self._turn]
        self._gathering.wait_stream(self._engine)
        if left is not None:
            self._gathering.wait_event(left)
        with torch.cuda.stream(self._gathering):
            torch.cat([part[block] for part in self._parts], out=gathered)
        whole = self._gathering.record_event()
        self._engine.wait_event(whole)
        self._out.wait_event(whole)
        with torch.cuda.stream(self._out):
            data.copy_(gathered, non_blocking=True)
        done = self._left[self._turn] = self._out.record_event()

        def wait() -> Bytes:
            done.synchronize()
            return data.numpy()

        return wait

    def allocate(self, num_bytes: int) -> memoryview:
        """Pinned until it is freed. torch's own pinned memory takes the next power of two.

        Raises:
            MemoryError: the system does not pin so much.
        """
        memory = np.empty(num_bytes, dtype=np.uint8)
        runtime, start = torch.cuda.cudart(), memory.ctypes.data  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(start, num_bytes, _PORTABLE))
        if error:
            raise MemoryError(f"{num_bytes} bytes of host memory cannot be pinned: CUDA error {error}")
        weakref.finalize(memory, runtime.cudaHostUnregister, start).atexit = False
        return memory.data

    def write(self, block: int, data: Bytes) -> None:
        source = _require_pinned(torch.from_numpy(data))
        with torch.cuda.stream(self._in):
            self._arrived.copy_(source, non_blocking=True)
            self._in.wait_stream(self._engine)
            torch._foreach_copy_([part[block] for part in self._parts], self._pieces)
        self._in.record_event().synchronize()


def _stream(device: torch.device) -> torch.cuda.Stream:
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made


def _require_pinned(memory: Tensor) -> Tensor:
    """This memory, which is pinned.

    Raises:
        InvalidArgument: it is not.
    """
    if not memory.is_pinned():
        raise InvalidArgument("memory that is not pinned would make the device's copies wait; use what allocate gives")
    return memory
