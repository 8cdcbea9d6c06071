"""The memory that holds the KV of all blocks, layer by layer."""

# Shapes: N blocks, the null block included  S tokens a block

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from framework.errors import InvalidArgument, OutOfMemory, Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec, LayerKV
from framework.interfaces.groups import GroupSizes, KVGroup
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
        groups: of KV, those of states among them; empty: one, of all layers.

    Attributes:
        group_of: the group of each layer with attention.
        pages: memories that several groups share, by number.
        rows_of: by group, rows of a layer's tensors from one of its blocks to the next.

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
        whole = KVGroup(name="full", kind="full", block_tokens=spec.block_size, block_bytes=1)
        self._groups = groups or [GroupSizes(group=whole, layers=(*range(num_layers),), num_blocks=num_blocks)]
        attention = [(at, one) for at, one in enumerate(self._groups) if one.group.kind != "state"]
        users = Counter(one.memory for one in self._groups)
        shared = {one.memory: one for one in self._groups if users[one.memory] > 1}
        self.bytes = sum(one.memory_bytes for one in shared.values())
        self.bytes += sum((one.num_blocks + 1) * block_bytes(_of(one, spec), len(one.layers))
                          for _, one in attention if one.memory not in shared)  # fmt: skip
        free = free_bytes(self.device)
        if self.bytes > free:
            raise _too_large(self.bytes, free, num_blocks, self.device)
        try:
            self.pages = {number: SharedPages(spec, one, self.device) for number, one in shared.items()}
            layers: dict[int, tuple[int, LayerKV]] = {}
            for at, one in attention:
                pages = self.pages.get(one.memory)
                for place, layer in enumerate(one.layers):
                    planes = pages.planes(one, place) if pages else self._planes(_of(one, spec), one.num_blocks + 1)
                    layers[layer] = at, self._layer(spec, planes)
        except (RuntimeError, MemoryError) as error:
            raise _too_large(self.bytes, free, num_blocks, self.device) from error
        self.group_of = [layers[layer][0] for layer in range(num_layers)]
        self.layers = [layers[layer][1] for layer in range(num_layers)]
        self.rows_of = [self.pages[one.memory].rows_of(one) if one.memory in shared else 1 for one in self._groups]
        for at, one in enumerate(self._groups):
            self.freed(np.arange(1, one.num_blocks + 1), at)

    def _planes(self, spec: AttentionSpec, num_blocks: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """New planes of a layer, and what their tokens are scaled by in an int8 pool."""
        shape = _shape(spec, num_blocks)
        while True:
            stored = torch.zeros(*shape, spec.head_dim, dtype=torch_dtype(self.dtype), device=self.device)
            yield stored, torch.ones(shape, device=self.device) if self.dtype == _INT8 else None

    def _layer(self, spec: AttentionSpec, planes: Iterator[tuple[torch.Tensor, torch.Tensor | None]]) -> LayerKV:
        def tensors() -> tuple[torch.Tensor, torch.Tensor | None]:
            stored, scale = next(planes)
            return stored, torch.ones(spec.num_kv_heads, device=self.device) if self.dtype == _FP8 else scale

        if spec.latent_dim is None:
            (k, k_scale), (v, v_scale) = tensors(), tensors()
            return LayerKV(k, v, self.layout, k_scale, v_scale)
        rows, scale = tensors()
        layer = LayerKV.of_rows(rows, spec.latent_dim, self.layout, scale)
        if spec.index_dim is not None:
            index = (len(rows), layer.block_size, spec.index_dim)
            layer.index = torch.zeros(index, dtype=torch_dtype(spec.dtype), device=self.device)
        return layer

    def copy(self, backends: Sequence[AttentionBackend], copies: Sequence[BlockCopy]) -> None:
        """Do these block copies, in order, in every layer of their group, each by its backend."""
        for group, rows in enumerate(self.rows_of if copies else ()):
            pairs = [(rows * copy.source, rows * copy.destination) for copy in copies if copy.group == group]
            for distinct in _distinct_destinations(np.array(pairs, dtype=np.int64)) if pairs else ():
                index = torch.from_numpy(distinct)  # on the host, where a backend can check it without a wait
                index = index.pin_memory() if self.device.type == "cuda" else index
                for layer, backend, of in zip(self.layers, backends, self.group_of, strict=True):
                    if of == group:
                        backend.copy_blocks(layer, index)

    def tensors_of(self, group: int) -> list[torch.Tensor]:
        """(N, ...) tensors of all that a block of this group has here: of one with its own memory those of
        `LayerKV.tensors`, layer by layer, and none of states."""
        if (one := self._groups[group]).memory in self.pages:
            return self.pages[one.memory].blocks(one)
        return [stored for layer, of in zip(self.layers, self.group_of, strict=True) if of == group
                for stored in layer.tensors.values()]  # fmt: skip

    def freed(self, blocks: npt.NDArray[np.integer], group: int = 0) -> None:
        """These blocks, 0 left out, hold no request's KV any more. With `poison` all that they have and that is no
        integer becomes NaN, else nothing happens: integers have their scales."""
        if not self.poison or len(blocks) == 0:
            return
        index = torch.from_numpy(np.asarray(blocks[blocks > 0], dtype=np.int64)).to(self.device)
        for stored in self.tensors_of(group):
            if stored.is_floating_point():
                stored[index] = torch.full((1,), math.nan).to(stored.dtype).to(self.device)


class SharedPages:
    """Memory of several groups of KV in pages, each of which holds blocks of one of them.

    A block of layers with attention is one plane after another: K and V, or rows, of each layer; one of states its
    bytes. A layer's tensors begin at its plane of block 0 and go on to the memory's end: they are contiguous, and block
    b lies in row b * `rows_of`, whatever lies between. Block 0 of each group ends page 0, which nobody has.

    Args:
        first: any of the groups.

    Raises:
        Unsupported: an indexer's keys.
    """

    def __init__(self, spec: AttentionSpec, first: GroupSizes, device: torch.device) -> None:
        if spec.index_dim is not None:
            raise Unsupported("groups of KV that share pages have no indexer's keys; take another cache.memory")
        self._spec, dtype = spec, torch_dtype(spec.kv_dtype or spec.dtype)
        self._heads = spec.block_size * spec.num_kv_heads  # vectors of a plane of `block_size` tokens
        self._count = spec.vectors // spec.num_kv_heads  # planes of a layer
        self._plane_bytes = block_bytes(spec, 1) // self._count
        self._num_planes = first.memory_bytes // self._plane_bytes
        count = self._num_planes * self._heads
        self._parts = [torch.zeros(count * spec.head_dim, dtype=dtype, device=device)]
        if dtype == torch.int8:
            self._parts.append(torch.ones(count, device=device))

    def rows_of(self, one: GroupSizes) -> int:
        """See KVPool."""
        return one.group.block_bytes // self._plane_bytes // (one.group.block_tokens // self._spec.block_size)

    def _first(self, one: GroupSizes) -> int:
        """The plane at which block 0 begins."""
        return (one.per_page - 1) * one.group.block_bytes // self._plane_bytes

    def planes(self, one: GroupSizes, place: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """The planes of a group's layer number `place`, as a layer's own would be."""
        wide = one.group.block_tokens // self._spec.block_size
        for plane in range(place * self._count, (place + 1) * self._count):
            start = self._first(one) + plane * wide
            rows = (self._num_planes - start) // wide
            shape, ends = _shape(_of(one, self._spec), rows), (start * self._heads, (start + rows * wide) * self._heads)
            stored, *scale = (part.view(self._num_planes * self._heads, -1)[slice(*ends)] for part in self._parts)
            yield stored.view(*shape, -1), scale[0].view(shape) if scale else None

    def blocks(self, one: GroupSizes) -> list[torch.Tensor]:
        """(N, ...) tensors of all that a block of this group has, page 0's among them."""
        rows, size = one.num_blocks + 1, one.group.block_bytes // self._plane_bytes
        start = self._first(one)
        return [part.view(self._num_planes, -1)[start : start + rows * size].view(rows, -1) for part in self._parts]


def _of(one: GroupSizes, spec: AttentionSpec) -> AttentionSpec:
    """What a group's layers with attention ask of a backend."""
    return replace(spec, block_size=one.group.block_tokens)


def _shape(spec: AttentionSpec, num_blocks: int) -> tuple[int, int, int]:
    """Of a plane's vectors."""
    heads, tokens = spec.num_kv_heads, spec.block_size
    return (num_blocks, tokens, heads) if spec.layout == "NHD" else (num_blocks, heads, tokens)


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
