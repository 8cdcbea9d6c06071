"""Paging that shares among forks alone."""

from __future__ import annotations

from framework.paged.allocator import PagedAllocator


class CowAllocator(PagedAllocator):
    """Forks share all blocks and copy one on first write; nothing across requests. vLLM V0's NaiveBlockAllocator."""

    share_prefix = False
    share_forks = "all"
