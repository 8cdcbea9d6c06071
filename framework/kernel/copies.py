"""Copies between a CUDA device and the host's memory, by size and direction, on streams of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import torch

from framework.errors import Unsupported

Memory = Literal["pinned", "pageable"]
Direction = Literal["read", "write"]
"""Out of host memory into the device (a load), or into host memory (a store)."""


class DeviceCopies:
    """Buffers of `num_bytes` on both sides for each direction, and a stream for each.

    Raises:
        Unsupported: the memory is not of the kind that was asked for.
    """

    def __init__(self, device: str, num_bytes: int, memory: Memory) -> None:
        pinned = memory == "pinned"
        ways: tuple[Direction, ...] = ("read", "write")
        self._host = {way: torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned) for way in ways}
        self._device = {way: torch.zeros(num_bytes, dtype=torch.uint8, device=device) for way in ways}
        self._streams = {way: torch.cuda.Stream(torch.device(device)) for way in ways}  # type: ignore[no-untyped-call]
        for buffer in self._host.values():
            if buffer.is_pinned() != pinned:
                raise Unsupported(f"{memory} memory was asked for, and the host's allocator gave other memory")
        torch.cuda.synchronize(torch.device(device))

    def seconds(self, directions: Sequence[Direction], num_bytes: int) -> float:
        """Wall clock of one copy in each of these directions, begun together, until all have ended."""
        start = time.perf_counter()
        ends = []
        for way in directions:
            host, device = self._host[way][:num_bytes], self._device[way][:num_bytes]
            with torch.cuda.stream(self._streams[way]):
                if way == "read":
                    device.copy_(host, non_blocking=True)
                else:
                    host.copy_(device, non_blocking=True)
                ends.append(self._streams[way].record_event())
        for end in ends:
            end.synchronize()
        return time.perf_counter() - start
