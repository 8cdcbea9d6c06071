"""Paging that shares across requests and among forks."""

from __future__ import annotations

from framework.paged.allocator import PagedAllocator


class PrefixCowAllocator(PagedAllocator):
    """Prefix sharing across requests, copy on write among forks. vLLM V0's PrefixCachingBlockAllocator; the default."""

    share_prefix = True
    share_forks = "all"
