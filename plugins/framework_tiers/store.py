"""The extension point for stores: where the K and V of a tier below the pool lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from framework.types import BlockHash

Allocate = Callable[[int], memoryview]
"""(bytes) -> so many bytes of uint8, contiguous and writable."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What the bytes of a block mean. Blocks of two formats are never mixed, whatever their keys.

    Attributes:
        model: fingerprint of the weights, or another text that is equal for equal K and V only.
        dtype: of K and V, by torch's name.
        layout: order of the dimensions of all layers' K and V in a block's bytes.
        block_size: tokens a block.
        hash: name of the hash scheme that made the keys.
        block_bytes: bytes a block, K and V of all layers.
    """

    model: str
    dtype: str
    layout: str
    block_size: int
    hash: str
    block_bytes: int


class Store(ABC):
    """Keeps blocks of bytes by key. The engine decides which; a store receives each write and each removal.

    The calls come from one thread at a time: `open` once, then `write`, `read`, `remove` and `keys` in any order, then
    `close` once. Keys are non-empty bytes; up to 64 every store takes. A failure is a `StoreFailed`: the block is
    then not stored, or the load becomes a recomputation, and the run goes on.
    """

    holds_kv: ClassVar[bool] = True
    """False: keys only. A serve run counts what such a tier would have hit, and recomputes it."""

    medium: ClassVar[str] = "CPU"
    """What KV events call the place: "CPU" for memory of the host, "STORAGE" for what lies further away."""

    def use_memory(self, allocate: Allocate) -> None:  # noqa: B027
        """Called once before `open` by an engine, for stores that keep blocks in the host's memory.

        Args:
            allocate: gives so many bytes of memory that the pool's device copies to and from fastest: pinned on CUDA,
                plain on a CPU. Take it once, in `open`: to pin memory takes a second for some gigabytes. It lives as
                long as it is referenced. Raises MemoryError where there is not so much.
        """

    @abstractmethod
    def open(self, format: BlockFormat, num_blocks: int) -> None:
        """Get ready for blocks of this format, at most `num_blocks` of them at a time.

        Raises:
            StoreFailed: it cannot, with what to do. The run does not begin.
        """

    @abstractmethod
    def write(self, key: BlockHash, data: memoryview) -> None:
        """Keep a block. A key that is held already gets the new bytes.

        Args:
            data: (block_bytes,) uint8, contiguous, read-only; valid during the call.

        Raises:
            StoreFailed: it is not kept; what was held under this key may be gone.
        """

    @abstractmethod
    def read(self, key: BlockHash, into: memoryview) -> bool:
        """Fill `into` with the bytes last written under this key.

        Args:
            into: (block_bytes,) uint8, contiguous. Undefined unless the answer is True.

        Returns:
            False: no such block, or one that is damaged: never wrong bytes.

        Raises:
            StoreFailed: it could not be read.
        """

    def reserve(self, key: BlockHash) -> memoryview | None:
        """Where the bytes of a block are to be written, for a copy that goes there without a buffer between.

        From here on the block counts as held under this key; who cannot fill it removes it. Nobody reads it before.

        Returns:
            (block_bytes,) uint8, contiguous, in memory from `use_memory`, valid until the key is removed. None, unless
            overridden: the block is written by `write`.

        Raises:
            StoreFailed: there is no room.
        """
        return None

    def view(self, key: BlockHash) -> memoryview | None:
        """Where the bytes of a block lie, for a copy from there without a buffer between.

        Returns:
            (block_bytes,) uint8, contiguous, valid until the key is removed or written. None, unless overridden, and
            where there is no such block: it is read by `read`.
        """
        return None

    @abstractmethod
    def remove(self, key: BlockHash) -> None:
        """Forget a block; nothing happens where there is none."""

    def keys(self) -> Iterable[BlockHash]:
        """What it holds when it is opened, least recently used first: blocks of this format that an earlier process
        left. Nothing, unless overridden. Listing need not read them."""
        return ()

    def close(self) -> None:  # noqa: B027
        """The run ends: free what `open` took. What outlives the process stays."""
