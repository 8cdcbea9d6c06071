"""Paging without sharing."""

from __future__ import annotations

from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.paged.allocator import PagedAllocator


class NaiveAllocator(PagedAllocator):
    """Paged blocks, nothing shared: a fork copies every block at once. The block manager before prefix caching."""

    share_prefix = False

    def __init__(
        self, *, num_blocks: int, block_size: int, hash: HashScheme, eviction: EvictionPolicy, watermark: float = 0.01
    ) -> None:
        super().__init__(
            num_blocks=num_blocks, block_size=block_size, hash=hash, eviction=eviction, watermark=watermark
        )
