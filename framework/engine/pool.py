"""The memory that holds the KV of all blocks, layer by layer."""

# Shapes: N blocks, the null block included  S tokens a block

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from framework.errors import InvalidArgument, OutOfMemory
from framework.interfaces.backend import AttentionBackend, AttentionSpec, LayerKV
from framework.interfaces.groups import GroupSizes
from framework.model.memory import free_bytes
from framework.types import BlockCopy

_FP8, _INT8 = "float8_e4m3fn", "int8"
_DTYPES = ("float64", "float32", "bfloat16", "float16", _FP8, _INT8)


class KVPool:
    """What `num_blocks` blocks keep in every layer, and block 0, the null block: zeros, always.

    Args:
        spec: planes, layout ("NHD" or "HND", see LayerKV), block size, and the dtype of K and V: "float8_e4m3fn" pools
            store value / scale, with a scale of 1 a head until set on the layers; "int8" pools hold a float32 scale for
            each token and head beside it.
        num_layers: with attention.
        num_blocks: usable blocks, ids 1 to `num_blocks`.
        poison: fill everything but the null block with NaN, and blocks again in `freed`: a read of
            what was never written then shows.
        groups: of KV; empty: one, of all layers.

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
        groups: Sequence[GroupSizes] = (),
    ) -> None:
        self.block_size, self.layout, self.dtype = spec.block_size, spec.layout, spec.kv_dtype or spec.dtype
        self.num_blocks, self.device, self.poison = num_blocks, torch.device(device), poison
        groups = groups or [GroupSizes(num_blocks=num_blocks, layers=(*range(num_layers),), pool=0)]
        self.group_of, self._num_groups = [0] * num_layers, len(groups)
        places = [(0, 0)] * num_layers  # pool, number of the tensors within it
        for number, group in enumerate(groups):
            for at, layer in enumerate(group.layers):
                self.group_of[layer], places[layer] = number, (group.pool, at)
        blocks = {group.pool: group.num_blocks + 1 for group in groups}
        each = block_bytes(spec, 1)
        self.bytes = sum(blocks[number] * each for number, _ in set(places))
        free = free_bytes(self.device)
        if self.bytes > free:
            raise _too_large(self.bytes, free, num_blocks, self.device)
        try:
            self.layers = list[LayerKV]()
            stored: dict[tuple[int, int], LayerKV] = {}
            for place in places:
                if place in stored:
                    self.layers.append(self._sharing(stored[place]))
                else:
                    stored[place] = self._layer(spec, blocks[place[0]])
                    self.layers.append(stored[place])
        except (RuntimeError, MemoryError) as error:
            raise _too_large(self.bytes, free, num_blocks, self.device) from error

    def _layer(self, spec: AttentionSpec, num_blocks: int) -> LayerKV:
        heads, device = spec.num_kv_heads, self.device
        inner = (self.block_size, heads) if self.layout == "NHD" else (heads, self.block_size)
        shape = (num_blocks, *inner, spec.head_dim)
        scales = {_FP8: (heads,), _INT8: shape[:-1]}.get(self.dtype)

        def tensors() -> tuple[torch.Tensor, torch.Tensor | None]:
            stored = torch.zeros(shape, dtype=torch_dtype(self.dtype), device=device)
            return stored, None if scales is None else torch.ones(scales, device=device)

        if spec.latent_dim is None:
            (k, k_scale), (v, v_scale) = tensors(), tensors()
            layer = LayerKV(k, v, self.layout, k_scale, v_scale)
        else:
            rows, scale = tensors()
            layer = LayerKV.of_rows(rows, spec.latent_dim, self.layout, scale)
        if spec.index_dim is not None:
            index = (num_blocks, self.block_size, spec.index_dim)
            layer.index = torch.zeros(index, dtype=torch_dtype(spec.dtype), device=device)
        if self.poison:
            self._poison(layer, slice(1, None))
        return layer

    def _sharing(self, layer: LayerKV) -> LayerKV:
        """A layer of another group over the same tensors: the scales of its heads are its own."""
        other = copy.copy(layer)
        if self.dtype == _FP8:
            scales = (None if scale is None else torch.ones_like(scale) for scale in (layer.k_scale, layer.v_scale))
            other.k_scale, other.v_scale = scales
        return other

    def _poison(self, layer: LayerKV, blocks: slice | torch.Tensor) -> None:
        """NaN in all that these blocks have, where it is no integer: those have their scales."""
        for stored in layer.tensors.values():
            if stored.is_floating_point():
                stored[blocks] = torch.full((1,), math.nan).to(stored.dtype).to(self.device)

    def copy(self, backend: AttentionBackend, copies: Sequence[BlockCopy]) -> None:
        """Do these block copies, in order, in every layer of their group."""
        for group in range(self._num_groups if copies else 0):
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
        """(N, ...) tensors of all that a block of this group has: see `LayerKV.tensors`, layer by layer."""
        return [stored for layer in self.layers_of(group) for stored in layer.tensors.values()]

    def freed(self, blocks: npt.NDArray[np.integer], group: int = 0) -> None:
        """These blocks hold no request's KV any more. With `poison` they become NaN, else nothing happens."""
        if not self.poison or len(blocks) == 0:
            return
        index = torch.from_numpy(np.asarray(blocks, dtype=np.int64)).to(self.device)
        for layer in self.layers_of(group):
            self._poison(layer, index)


def block_bytes(spec: AttentionSpec, num_layers: int) -> int:
    """Bytes of all that one block keeps in so many layers, with the scales that belong to its tokens (int8)."""
    stored, planes = spec.kv_dtype or spec.dtype, spec.planes
    index = planes.pop("index", 0) * torch_dtype(spec.dtype).itemsize
    scales = 4 * spec.vectors if stored == _INT8 else 0
    token = sum(planes.values()) * torch_dtype(stored).itemsize + index + scales
    return num_layers * spec.block_size * token


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
