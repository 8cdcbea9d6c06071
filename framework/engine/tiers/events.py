"""KV events of the tiers below the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from framework.engine.tiers.contents import KnownContents
from framework.kv_events.schema import BlockRemoved, BlockStored
from framework.kv_events.stream import EventStream
from framework.types import BlockHash


class TierEvents:
    """Says in KV events what lies below the pool: a block that can be loaded, and one that no longer can.

    A block is announced when its copy has ended, not when it was asked for. Two tiers of one medium are one place: it
    holds a block as long as either does. Tokens were sent when the pool published the block, and are not sent again.

    Args:
        media: of the tiers from 1 on.
    """

    def __init__(self, stream: EventStream, media: Sequence[str], block_size: int, contents: KnownContents) -> None:
        self._stream, self._media, self._size, self._contents = stream, media, block_size, contents
        self._held: set[tuple[int, BlockHash]] = set()
        self._copies: Counter[tuple[str, BlockHash]] = Counter()

    def stored(self, key: BlockHash, tier: int) -> None:
        """The tier holds this content now."""
        medium = self._media[tier - 1]
        if (tier, key) in self._held:
            return
        self._held.add((tier, key))
        self._copies[medium, key] += 1
        if self._copies[medium, key] == 1:
            self._stream.add(
                BlockStored(
                    block_hashes=[key],
                    parent_block_hash=self._contents.parent(key),
                    token_ids=[],
                    block_size=self._size,
                    medium=medium,
                    group_idx=0,
                )
            )

    def removed(self, key: BlockHash, tier: int) -> None:
        """The tier holds this content no longer; nothing is said of one that was never announced."""
        medium = self._media[tier - 1]
        if (tier, key) not in self._held:
            return
        self._held.remove((tier, key))
        self._copies[medium, key] -= 1
        if not self._copies[medium, key]:
            del self._copies[medium, key]
            self._stream.add(BlockRemoved(block_hashes=[key], medium=medium, group_idx=0))
