"""The memory that holds the KV of all blocks, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from framework.errors import InvalidArgument, OutOfMemory
from framework.interfaces.backend import AttentionBackend, AttentionSpec, LayerKV
from framework.model.memory import free_bytes
from framework.types import BlockCopy

_FP8, _INT8 = "float8_e4m3fn", "int8"
_DTYPES = ("float64", "float32", "bfloat16", "float16", _FP8, _INT8)


class KVPool:
    """K and V of `num_blocks` blocks in every layer, and of block 0, the null block: zeros, always.

    Args:
        spec: heads, layout ("NHD" or "HND", see LayerKV), block size, and the dtype of K and V: "float8_e4m3fn" pools
            store value / scale, with a scale of 1 a head until set on the layers; "int8" pools hold a float32 scale for
            each token and head beside it.
        num_layers: with attention.
        num_blocks: usable blocks, ids 1 to `num_blocks`.
        poison: fill everything but the null block with NaN, and blocks again in `freed`: a read of
            what was never written then shows.
        further: (usable blocks, layers) of each group of KV after the first, which has the layers that none names.

    Attributes:
        group_of: the group of each layer.

    Raises:
        InvalidArgument: an unknown dtype.
        OutOfMemory: the device has too little; with bytes asked and free.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        num_layers: int,
        num_blocks: int,
        device: str | torch.device = "cpu",
        poison: bool = False,
        further: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> None:
        self.block_size, self.layout, self.dtype = spec.block_size, spec.layout, spec.kv_dtype or spec.dtype
        self.num_blocks, self.device, self.poison = num_blocks, torch.device(device), poison
        self.group_of, self._sizes = [0] * num_layers, [num_blocks, *(count for count, _ in further)]
        for group, (_, layers) in enumerate(further, 1):
            for layer in layers:
                self.group_of[layer] = group
        each = block_bytes(spec, 1)
        self.bytes = sum((self._sizes[group] + 1) * each for group in self.group_of)
        free = free_bytes(self.device)
        if self.bytes > free:
            raise _too_large(self.bytes, free, num_blocks, self.device)
        heads = spec.num_kv_heads
        inner = (self.block_size, heads) if self.layout == "NHD" else (heads, self.block_size)
        shapes = [(self._sizes[group] + 1, *inner, spec.head_dim) for group in self.group_of]
        scales = [{_FP8: (heads,), _INT8: shape[:-1]}.get(self.dtype) for shape in shapes]
        try:
            self.layers = list(map(self._layer, shapes, scales))
        except (RuntimeError, MemoryError) as error:
            raise _too_large(self.bytes, free, num_blocks, self.device) from error

    def _layer(self, shape: tuple[int, ...], scales: tuple[int, ...] | None) -> LayerKV:
        dtype = torch_dtype(self.dtype)
        k, v = (torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(2))
        layer = LayerKV(k, v, self.layout)
        if scales:
            layer.k_scale, layer.v_scale = (torch.ones(scales, device=self.device) for _ in range(2))
        if self.poison:
            self._poison(layer, slice(1, None))
        return layer

    def _poison(self, layer: LayerKV, blocks: slice | torch.Tensor) -> None:
        """NaN in these blocks, or, where an integer cannot be it, in their scales."""
        if self.dtype != _INT8:
            nan = torch.full((1,), math.nan).to(torch_dtype(self.dtype)).to(self.device)
            layer.k[blocks], layer.v[blocks] = nan, nan
            return
        for scale in (layer.k_scale, layer.v_scale):
            assert scale is not None
            scale[blocks] = math.nan

    def copy(self, backend: AttentionBackend, copies: Sequence[BlockCopy]) -> None:
        """Do these block copies, in order, in every layer of their group."""
        for group in range(len(self._sizes) if copies else 0):
            pairs = [(copy.source, copy.destination) for copy in copies if copy.group == group]
            for distinct in _distinct_destinations(np.array(pairs, dtype=np.int64)) if pairs else ():
                index = torch.from_numpy(distinct)  # on the host, where a backend can check it without a wait
                index = index.pin_memory() if self.device.type == "cuda" else index
                for layer in self.layers_of(group):
                    backend.copy_blocks(layer, index)

    def layers_of(self, group: int) -> list[LayerKV]:
        """K and V of the layers of this group."""
        return [layer for layer, layer_group in zip(self.layers, self.group_of, strict=True) if layer_group == group]

    def tensors_of(self, group: int) -> list[torch.Tensor]:
        """(N + 1, ...) tensors of all that a block of this group has: K and V of each layer, an int8 pool's scales."""
        names = ("k", "v", "k_scale", "v_scale") if self.dtype == _INT8 else ("k", "v")
        return [getattr(layer, name) for layer in self.layers_of(group) for name in names]

    def freed(self, blocks: npt.NDArray[np.integer], group: int = 0) -> None:
        """These blocks hold no request's KV any more. With `poison` they become NaN, else nothing happens."""
        if not self.poison or len(blocks) == 0:
            return
        index = torch.from_numpy(np.asarray(blocks, dtype=np.int64)).to(self.device)
        for layer in self.layers_of(group):
            self._poison(layer, index)


def block_bytes(spec: AttentionSpec, num_layers: int) -> int:
    """Bytes of one block's K and V in so many layers, with the scales that belong to its tokens (int8)."""
    dtype = spec.kv_dtype or spec.dtype
    each = spec.head_dim * torch_dtype(dtype).itemsize + (4 if dtype == _INT8 else 0)
    return 2 * num_layers * spec.block_size * spec.num_kv_heads * each


def num_blocks_for(
    fraction: float, device: str | torch.device, spec: AttentionSpec, num_layers: int, needed: int = 0
) -> int:
    """How many usable blocks fit into `fraction` (0 to 1] of the device's free memory, the null block paid for.

    Args:
        needed: bytes of the free ones that something else will take: what the largest step holds beside the pool.

    Raises:
        OutOfMemory: not even one block fits.
    """
    each = block_bytes(spec, num_layers)
    free = max(0, free_bytes(device) - needed)
    count = int(fraction * free) // each - 1
    if count < 1:
        beside = f" (the largest step takes {needed:,} more)" if needed else ""
        raise OutOfMemory(
            f"cache.memory_fraction={fraction:g} of the {free:,} bytes free on {device}{beside} holds no block of "
            f"{each:,} bytes beside the null block; raise the fraction, or lower cache.block_size or "
            "engine.max_batch_tokens"
        )
    return count


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name.

    Raises:
        InvalidArgument: no dtype a KV pool can have.
    """
    if name not in _DTYPES:
        raise InvalidArgument(f"KV dtype {name!r} is unknown; known: {', '.join(_DTYPES)}")
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _too_large(asked: int, free: int, num_blocks: int, device: torch.device) -> OutOfMemory:
    fit = max(0, free // max(1, asked // (num_blocks + 1)) - 1)
    return OutOfMemory(
        f"a KV pool of {num_blocks} blocks takes {asked:,} bytes ({asked / 2**30:.2f} GiB), and {free:,} "
        f"({free / 2**30:.2f} GiB) are free on {device}; at most {fit} blocks fit: lower cache.num_blocks, or "
        "cache.block_size"
    )


def _distinct_destinations(pairs: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Split where a destination comes a second time: backends refuse it within one call, and order decides here."""
    groups, first, seen = [], 0, set[int]()
    for index, destination in enumerate(pairs[:, 1].tolist()):
        if destination in seen:
            groups.append(pairs[first:index])
            first, seen = index, set()
        seen.add(destination)
    return [*groups, pairs[first:]]
