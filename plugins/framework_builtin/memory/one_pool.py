"""One pool of equal pages for all groups of KV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from framework.groups.memory import Memory, Policies
from framework.groups.pool import Pool


class OnePool(Memory):
    """Pages of equal bytes for all groups behind one policy, as in vLLM: with `lru` its free queue, to the block.

    A content computed again, because another group cut the hit, is resident twice, as there. A page has the bytes of
    the largest block.
    """

    merge = False
    equal_pages: ClassVar[bool] = True

    def make_pools(self, policy: Policies, *, num_bytes: int, num_blocks: Sequence[int]) -> Sequence[Pool]:
        count = num_bytes // max(group.block_bytes for group in self.groups)
        return [Pool(count, policy(count), self.clock)]
