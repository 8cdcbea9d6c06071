"""Groups of KV of a served model: which there are, how many blocks they get, and the allocator over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from framework.engine.pool import block_bytes
from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import Turns
from framework.groups.memory import PoolPerGroup
from framework.interfaces.allocator import Allocator
from framework.interfaces.attention import AttentionSpec
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import Kind, KVGroup
from framework.interfaces.hash import HashScheme
from framework.model.config import ModelConfig
from framework.paged.allocator import PagedAllocator


def groups_of_model(config: ModelConfig, spec: AttentionSpec) -> tuple[KVGroup, ...]:
    """Full attention, and the sliding window or recurrent state of a model that has layers of both; empty of any other.

    States are counted in the model's dtype, that of `spec`.
    """

    def attention(kind: Kind, num_layers: int, length: int = 0) -> KVGroup:
        size = block_bytes(spec, num_layers)
        return KVGroup(name=kind, kind=kind, block_tokens=spec.block_size, block_bytes=size, length=length)

    if (states := config.recurrent) is not None:
        size = sum(states.layers) * states.state_bytes(getattr(torch, spec.dtype).itemsize)
        state = KVGroup(name="state", kind="state", block_tokens=spec.block_size, block_bytes=size)
        return attention("full", len(config.attention_layers)), state
    slides, window = sum(map(config.slides, range(config.num_layers))), config.sliding_window
    if window is None or window < 2 or slides in (0, config.num_layers):
        return ()
    return attention("full", config.num_layers - slides), attention("window", slides, window)


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
    shares: PagedAllocator, groups: Sequence[KVGroup], num_blocks: Sequence[int],
    policy: Callable[[], EvictionPolicy], hash: HashScheme, *, step_tokens: int,
) -> GroupedAllocator:  # fmt: skip
    """An allocator over a pool and a policy a group, which shares what `shares` shares; the rule is `Turns`."""
    memory = PoolPerGroup(groups, policy, num_blocks=num_blocks, coupled=False, unit=shares.block_size)
    return GroupedAllocator(
        memory, Turns(), hash, num_blocks=num_blocks[0], step_tokens=step_tokens, share_prefix=shares.share_prefix,
        share_forks=shares.share_forks, watermark=shares.watermark,
    )  # fmt: skip


def running_blocks(group: KVGroup, num_blocks: int, rows: int, step_tokens: int) -> int:
    """Blocks that running requests can need in a group of windows or states, no more than `num_blocks`, the other's.

    A row reads `window - 1` tokens back from the one that it computes, which touch one block more than they fill, and
    is admitted with one; a step writes `step_tokens`.
    """
    size = group.block_tokens
    return min(num_blocks, rows * (-(-((group.length or 2) - 1) // size) + 2) + -(-step_tokens // size))
