"""A pool for each group of KV."""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.groups.memory import Memory, Policies
from framework.groups.pool import Node, Pool


class PoolPerGroup(Memory):
    """A pool and a policy for each group.

    Coupled, over one tree, as in SGLang: full attention gives up leaves only, and all that ends there goes with it.
    Elsewhere a window or state that is evicted leaves a tombstone: the prefix stays, but nobody resumes there; a window
    takes the state along. At a leaf the whole leaf goes. Else groups know nothing of each other.

    Args:
        coupled: see above.

    Raises:
        InvalidArgument: when opened coupled without one full-attention group, or with blocks of several sizes.
    """

    def __init__(self, coupled: bool = True) -> None:
        self._coupled = coupled
        self._going: set[Node] = set()

    def make_pools(self, policy: Policies, *, num_bytes: int, num_blocks: Sequence[int]) -> Sequence[Pool]:
        groups, kinds = self.groups, [group.kind for group in self.groups]
        if not self._coupled:
            return [Pool(count, policy(count), self.clock) for _, count in zip(groups, num_blocks, strict=True)]
        if kinds.count("full") != 1 or len({group.block_tokens for group in groups}) > 1:
            raise InvalidArgument(f"a pool a group over one tree needs one full-attention group and equal blocks, "
                                  f"found {[(group.kind, group.block_tokens) for group in groups]}")  # fmt: skip
        self._full = kinds.index("full")
        self._rank = [("state", "window", "chunk", "full").index(kind) for kind in kinds]
        return [
            Pool(count, policy(count), self.clock, leaf_only=g == self._full)
            for g, (_, count) in enumerate(zip(groups, num_blocks, strict=True))
        ]

    def evicted(self, group: int, node: Node) -> None:
        super().evicted(group, node)
        if not self._coupled or node in self._going:
            return
        self._going.add(node)
        full = self.pools[self._full]
        leaf = full.find(self._full, node)
        whole = leaf and not full.children[leaf] and not full.ref[leaf]
        for other, block in self.partners_of(group, node):
            if (whole or self._rank[other] < self._rank[group]) and not self.pools[other].ref[block]:
                self.pools[other].discard(block)
        self._going.remove(node)
