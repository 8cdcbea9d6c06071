"""Paging that shares among forks alone."""

from __future__ import annotations

from framework_builtin.allocator.naive import NaiveAllocator


class CowAllocator(NaiveAllocator):
    """Forks share all blocks and copy one on first write; nothing across requests. vLLM V0's NaiveBlockAllocator."""

    share_forks = "all"
