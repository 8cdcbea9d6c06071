"""Paging that shares full blocks across requests."""

from __future__ import annotations

from framework.paged.allocator import PagedAllocator


class PrefixAllocator(PagedAllocator):
    """Full blocks are shared across requests by chained hash, and among forks. nano-vllm's BlockManager."""

    share_prefix = True
    share_forks = "full"
