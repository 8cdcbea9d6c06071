"""Groups of KV of a served model: which there are, how many blocks they get, and the allocator over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framework.engine.pool import block_bytes
from framework.errors import ConfigError
from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import Turns
from framework.groups.memory import Memory
from framework.interfaces.allocator import Allocator
from framework.interfaces.attention import AttentionSpec
from framework.interfaces.groups import GroupSizes, Kind, KVGroup, equal_layers
from framework.interfaces.hash import HashScheme
from framework.model.config import ModelConfig
from framework.paged.allocator import PagedAllocator


@dataclass(frozen=True, slots=True)
class ServedGroup:
    """A group of KV of a served model, and its layers: numbers among those with attention, none of states."""

    group: KVGroup
    layers: tuple[int, ...]


def groups_of_model(config: ModelConfig, spec: AttentionSpec, *, equal_pages: bool = False) -> tuple[ServedGroup, ...]:
    """Full attention, sliding windows, chunks and recurrent states, of a model that has layers of several of them and
    of full attention; empty of any other. States come last, and are counted in the model's dtype, that of `spec`. A
    chunk that does not divide into blocks is kept whole.

    Args:
        equal_pages: those with attention are split into groups of equally many layers, as vLLM does; a group
            with fewer leaves a part of its pages unused.
    """
    layers: dict[tuple[Kind, int], list[int]] = {("full", 0): []}
    for number, layer in enumerate(config.attention_layers):
        window, chunk = config.window(layer) or 0, config.chunk(layer) or 0
        kind: Kind = "window" if window > 1 else "full" if chunk < 2 or chunk % spec.block_size else "chunk"
        layers.setdefault((kind, 0 if kind == "full" else window or chunk), []).append(number)
    states = config.state_layers
    if not states and (not layers["full", 0] or len(layers) == 1):
        return ()
    if not layers["full", 0]:  # the first group keeps what the others go on from
        layers = {("full", 0): [*range(len(config.attention_layers))]}
    width = equal_layers([*map(len, layers.values())]) if equal_pages else 0
    found = [one for (kind, length), of in layers.items() for one in _groups_of(kind, of, spec, length, width)]
    if states:
        size = len(states) * config.state_bytes(getattr(torch, spec.dtype).itemsize)
        state = KVGroup(name="state", kind="state", block_tokens=spec.block_size, block_bytes=size)
        found.append(ServedGroup(state, ()))
    return tuple(found)


def _groups_of(
    kind: Kind, layers: Sequence[int], spec: AttentionSpec, length: int, width: int
) -> Sequence[ServedGroup]:
    """These layers in groups of `width`; 0: one group of all."""
    count, size = -(-len(layers) // (width or len(layers))), block_bytes(spec, width or len(layers))
    return [
        ServedGroup(
            KVGroup(name=f"{kind}{part}" if count > 1 else kind, kind=kind, block_tokens=spec.block_size,
                    block_bytes=size, length=length), (*layers[part::count],),
        )
        for part in range(count)
    ]  # fmt: skip


def why_no_group(allocator: Allocator) -> str:
    """Why what this allocator shares cannot be shared over groups, in a sentence; empty if it can."""
    kind = type(allocator)
    if not isinstance(allocator, PagedAllocator):
        return f"{kind.__name__} finds no blocks by chained hash alone; prefix and prefix_cow do"
    own = {name for cls in kind.__mro__ if PagedAllocator in cls.__mro__[1:] for name in vars(cls) if name[0] != "_"}
    if own := own - {"share_prefix", "share_forks"}:
        return f"{kind.__name__} has a {min(own)} of its own, for one table; prefix and prefix_cow have not"
    index = allocator.cache.index
    if index.compares_tokens or index.keeps_duplicates:
        return "a window's blocks are found by name alone; take a collision-resistant hash, and duplicates=merge"
    return ""


def grouped_allocator(
    shares: PagedAllocator, memory: Memory, hash: HashScheme, *, num_blocks: int, step_tokens: int,
) -> GroupedAllocator:  # fmt: skip
    """An allocator over a memory, which shares what `shares` shares; the rule is `Turns`."""
    size = memory.pools[0].num_blocks * memory.groups[0].block_bytes
    return GroupedAllocator(
        memory, Turns(), hash, num_blocks=num_blocks, num_bytes=size if memory.equal_pages else None,
        step_tokens=step_tokens, share_prefix=shares.share_prefix, share_forks=shares.share_forks,
        watermark=shares.watermark,
    )  # fmt: skip


def placed(memory: Memory, groups: Sequence[ServedGroup]) -> tuple[GroupSizes, ...]:
    """Where the layers of each group lie.

    Raises:
        ConfigError: groups that share a pool and whose layers cannot share tensors.
    """
    pools = [*dict.fromkeys(memory.pools)]
    for pool in pools:
        sizes = {group.block_bytes for group, other in zip(memory.groups, memory.pools, strict=True) if other is pool}
        if len(sizes) > 1:
            raise ConfigError(
                f"{type(memory).__name__} keeps blocks of {sorted(sizes)} bytes in one pool, and says nothing of equal "
                "pages; a model cannot be served over it"
            )
    return tuple(
        GroupSizes(num_blocks=pool.num_blocks, layers=served.layers, pool=pools.index(pool))
        for served, pool in zip(groups, memory.pools, strict=True)
    )


def blocks_of_groups(groups: Sequence[KVGroup], num_blocks: int, rows: int, step_tokens: int) -> list[int]:
    """By group, blocks of a pool of its own: of full attention `num_blocks`, of others what running requests need."""
    return [num_blocks if group.kind == "full" else running_blocks(group, num_blocks, rows, step_tokens)
            for group in groups]  # fmt: skip


def running_blocks(group: KVGroup, num_blocks: int, rows: int, step_tokens: int) -> int:
    """Blocks that running requests can need in a group of windows or states, no more than `num_blocks`, the other's.

    A row reads `window - 1` tokens back from the one that it computes, which touch one block more than they fill, and
    is admitted with one; a step writes `step_tokens`.
    """
    size = group.block_tokens
    return min(num_blocks, rows * (-(-((group.length or 2) - 1) // size) + 2) + -(-step_tokens // size))
