"""Groups of KV of a served model: which there are, how many blocks they get, and the allocator over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm

from framework.engine.pool import block_bytes, torch_dtype
from framework.errors import ConfigError
from framework.groups.memory import Memory
from framework.interfaces.allocator import Allocator
from framework.interfaces.attention import AttentionSpec
from framework.interfaces.groups import GroupSizes, Kind, KVGroup, equal_layers
from framework.model.config import ModelConfig
from framework.paged.allocator import PagedAllocator


def groups_of_model(
    config: ModelConfig,
    spec: AttentionSpec,
    memory: Memory | None = None,
    block_tokens: Mapping[str, int] | None = None,
) -> tuple[GroupSizes, ...]:
    """Full attention, sliding windows, chunks and recurrent states, of a model that has layers of several of them and
    of full attention; empty of any other. States come last, and are counted in the model's dtype, that of `spec`. A
    chunk that does not divide into blocks is kept whole.

    Args:
        memory: how they share memory. Where pages are equal, layers are split into groups of equally many, as vLLM
            does, and a group with fewer leaves a part of its pages unused. Where they are split, states are padded.
        block_tokens: of the groups after the first, by kind, where they are not those of `spec`.

    Raises:
        ConfigError: blocks of a kind that the model has not, or of full attention, by whose blocks contents are named.
        InvalidArgument: blocks that are no multiple of those of `spec`.
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
    if states:
        layers["state", 0] = [*range(len(states))]
    block_tokens = block_tokens or {}
    if unknown := {*block_tokens} - ({kind for kind, _ in layers} - {"full"}):
        raise ConfigError(
            f"cache.group_block_size has '{min(unknown)}'; the groups whose blocks may have another size than "
            f"cache.block_size are {sorted({kind for kind, _ in layers} - {'full'})}"
        )
    width = equal_layers([*map(len, layers.values())]) if memory and memory.equal_pages else 0
    found = list[GroupSizes]()
    for (kind, length), numbers in layers.items():
        each = width or len(numbers)
        count, size = -(-len(numbers) // each), block_bytes(spec, each)
        if kind == "state" and not width:
            size = each * config.state_bytes(torch_dtype(spec.dtype).itemsize)
            if memory and memory.splits_pages:
                page = lcm(*(one.group.block_bytes for one in found))
                size = -(-size * block_bytes(spec, 1) // _stored_bytes(spec) // page) * page
        for part in range(count):
            group = KVGroup(name=f"{kind}{part}" if count > 1 else kind, kind=kind, block_tokens=spec.block_size,
                            block_bytes=size, length=length)  # fmt: skip
            group = group.sized(block_tokens.get(kind, spec.block_size))
            found.append(GroupSizes(group=group, layers=(*numbers[part::count],)))
    return tuple(found)


def tokens_that_hold_a_state(config: ModelConfig, spec: AttentionSpec) -> int:
    """Tokens of the smallest attention block, a multiple of that of `spec`, that is no smaller than a layer's state."""
    state = config.state_bytes(torch_dtype(spec.dtype).itemsize)
    return spec.block_size * max(1, -(-state // _stored_bytes(spec)))


def _stored_bytes(spec: AttentionSpec) -> int:
    """Bytes of a layer's block, without the scales beside it."""
    return sum(spec.planes.values()) * spec.block_size * torch_dtype(spec.kv_dtype or spec.dtype).itemsize


def why_no_group(allocator: Allocator) -> str:
    """Why what this allocator shares cannot be shared over groups, in a sentence; empty if it can."""
    kind = type(allocator)
    if not isinstance(allocator, PagedAllocator):
        return f"{kind.__name__} has one table a request and one index for it; prefix and prefix_cow have one a group"
    own = {name for cls in kind.__mro__ if PagedAllocator in cls.__mro__[1:] for name in vars(cls) if name[0] != "_"}
    if own := own - {"share_prefix", "share_forks"}:
        return f"{kind.__name__} has a {min(own)} of its own, for one table; prefix and prefix_cow have not"
    index = allocator.cache.index
    if index.compares_tokens or index.keeps_duplicates:
        return "a window's blocks are found by name alone; take a collision-resistant hash, and duplicates=merge"
    return ""


def placed(memory: Memory, groups: Sequence[GroupSizes]) -> tuple[GroupSizes, ...]:
    """Where the layers of each group lie.

    Raises:
        ConfigError: groups that share a pool and whose blocks have several sizes.
    """
    pools = [*dict.fromkeys(memory.pools)]
    for pool in pools:
        sizes = {group.block_bytes for group, other in zip(memory.groups, memory.pools, strict=True) if other is pool}
        if len(sizes) > 1:
            raise ConfigError(
                f"{type(memory).__name__} keeps blocks of {sorted(sizes)} bytes in one pool, whose pages are equal; a "
                "model cannot be served over it: leave cache.group_block_size out, or take another cache.memory"
            )
    per_page, split = memory.per_page or [1] * len(groups), memory.splits_pages
    return tuple(
        replace(one, num_blocks=pool.num_blocks, memory=0 if split else pools.index(pool), per_page=count)
        for one, pool, count in zip(groups, memory.pools, per_page, strict=True)
    )


def blocks_of_groups(groups: Sequence[KVGroup], num_blocks: int, rows: int, step_tokens: int) -> list[int]:
    """By group, blocks of a pool of its own: of full attention `num_blocks`, of others what running requests can need,
    and no more than hold as many tokens.

    A row reads `window - 1` tokens back from the one that it computes, which touch one block more than they fill, and
    is admitted with one; a step writes `step_tokens`.
    """
    counts = []
    for group in groups:
        size = group.block_tokens
        most = -(-num_blocks * groups[0].block_tokens // size)
        needed = rows * (-(-((group.length or 2) - 1) // size) + 2) + -(-step_tokens // size)
        counts.append(most if group.kind == "full" else min(most, needed))
    return counts
