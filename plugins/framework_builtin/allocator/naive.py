"""Paging without sharing."""

from __future__ import annotations

from framework.paged.allocator import PagedAllocator


class NaiveAllocator(PagedAllocator):
    """Paged blocks, nothing shared: a fork copies every block at once. The block manager before prefix caching."""

    share_prefix = False
    share_forks = "none"
