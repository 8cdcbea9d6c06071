"""The bytes of the KV pool's blocks, for copies to and from the tiers below it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.pool import KVPool
from framework.interfaces.store import BlockFormat

Bytes = npt.NDArray[np.uint8]


def _parts(pool: KVPool) -> list[Tensor]:
    """(N + 1, bytes) uint8 views of all that a block has: K and V of each layer, and an int8 pool's scales."""
    found: list[Tensor] = []
    for layer in pool.layers:
        found += [layer.k, layer.v]
        if pool.dtype == "int8":
            assert layer.k_scale is not None
            assert layer.v_scale is not None
            found += [layer.k_scale, layer.v_scale]
    return [part.view(len(part), -1).view(torch.uint8) for part in found]


def block_format(pool: KVPool, model: str, hash: str) -> BlockFormat:
    """What a block's bytes mean: for a store that outlives the process.

    Args:
        model: fingerprint of the weights. The scales of an fp8 pool are added to it.
    """
    if pool.dtype == "float8_e4m3fn":
        scales = [scale for layer in pool.layers for scale in (layer.k_scale, layer.v_scale) if scale is not None]
        model += (
            "/" + hashlib.sha256(torch.cat([scale.float().cpu() for scale in scales]).numpy().tobytes()).hexdigest()
        )
    return BlockFormat(
        model=model,
        dtype=pool.dtype,
        layout=pool.layout,
        block_size=pool.block_size,
        hash=hash,
        block_bytes=sum(part.shape[1] for part in _parts(pool)),
    )


def pool_bytes(pool: KVPool) -> HostPoolBytes | CudaPoolBytes:
    """Those of a pool on the device it is on."""
    return CudaPoolBytes(pool) if pool.device.type == "cuda" else HostPoolBytes(pool)


class HostPoolBytes:
    """Of a pool in the host's memory. See `framework.tiers.worker.PoolBytes`."""

    def __init__(self, pool: KVPool) -> None:
        self._parts = [part.numpy() for part in _parts(pool)]
        self._ends = np.cumsum([part.shape[1] for part in self._parts]).tolist()
        self.block_bytes = int(self._ends[-1])

    def read(self, block: int) -> Callable[[], Bytes]:
        data = np.concatenate([part[block] for part in self._parts])
        return lambda: data

    def buffer(self) -> Bytes:
        return np.empty(self.block_bytes, dtype=np.uint8)

    def write(self, block: int, data: Bytes) -> None:
        start = 0
        for part, end in zip(self._parts, self._ends, strict=True):
            part[block] = data[start:end]
            start = end


class CudaPoolBytes:
    """Of a pool on a CUDA device: copies run on a stream of their own, beside what the engine computes.

    NOTE. The engine's stream waits, on the device, for a read to end before it does anything more: the block is about
    to be overwritten. A write waits for what the engine's stream was given before, which may read the block's last
    content, and the thread that asks for it waits for its end: a request is given a block once its bytes are there.
    """

    def __init__(self, pool: KVPool) -> None:
        self._parts = _parts(pool)
        self._ends = np.cumsum([part.shape[1] for part in self._parts]).tolist()
        self.block_bytes = int(self._ends[-1])
        self._device = pool.device
        self._engine = torch.cuda.current_stream(pool.device)
        self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]

    def _spans(self) -> list[tuple[Tensor, int, int]]:
        return [(part, end - part.shape[1], end) for part, end in zip(self._parts, self._ends, strict=True)]

    def read(self, block: int) -> Callable[[], Bytes]:
        data = torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(self._engine)
            for part, start, end in self._spans():
                data[start:end].copy_(part[block], non_blocking=True)
            done = self._stream.record_event()
        self._engine.wait_event(done)

        def wait() -> Bytes:
            done.synchronize()
            return data.numpy()

        return wait

    def buffer(self) -> Bytes:
        return torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=True).numpy()

    def write(self, block: int, data: Bytes) -> None:
        source = torch.from_numpy(data)
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(self._engine)
            for part, start, end in self._spans():
                part[block].copy_(source[start:end], non_blocking=True)
            self._stream.record_event().synchronize()
