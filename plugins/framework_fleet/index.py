"""Which replicas hold which blocks, by name: from events, or guessed from what was sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from framework.types import BlockHash


class Holdings:
    """Names of blocks -> the replicas that hold them. A block whose ancestors are gone is held, and matches nothing."""

    def __init__(self, num_replicas: int) -> None:
        self._masks: dict[BlockHash, int] = {}
        self._all, self._count = (1 << num_replicas) - 1, num_replicas

    def add(self, replica: int, keys: Iterable[BlockHash]) -> None:
        """`replica` holds these blocks now."""
        masks, bit = self._masks, 1 << replica
        for key in keys:
            masks[key] = masks.get(key, 0) | bit

    def remove(self, replica: int, keys: Iterable[BlockHash]) -> None:
        """`replica` holds these blocks no longer, if it did."""
        masks, others = self._masks, ~(1 << replica)
        for key in keys:
            mask = masks.get(key, 0) & others
            if mask:
                masks[key] = mask
            else:
                masks.pop(key, None)

    def drop(self, replica: int) -> None:
        """`replica` holds nothing. O(blocks held by any)."""
        self.remove(replica, list(self._masks))

    def matched(self, keys: Sequence[BlockHash], start: Sequence[int] | None = None) -> list[int]:
        """(replicas,) how many of these leading blocks each holds. O(blocks + replicas).

        Args:
            start: (replicas,) leading blocks of each that it has elsewhere: what follows them is counted on.
        """
        if start is not None and any(start):
            return [self._beyond(keys, replica, at) for replica, at in enumerate(start)]
        depths, alive, masks = [len(keys)] * self._count, self._all, self._masks
        for depth, key in enumerate(keys):
            stay = alive & masks.get(key, 0)
            gone, alive = alive & ~stay, stay
            while gone:
                bit = gone & -gone
                depths[bit.bit_length() - 1] = depth
                gone ^= bit
            if not alive:
                break
        return depths

    def _beyond(self, keys: Sequence[BlockHash], replica: int, at: int) -> int:
        bit = 1 << replica
        while at < len(keys) and self._masks.get(keys[at], 0) & bit:
            at += 1
        return at


class SentBlocks:
    """A router's guess of what replicas hold: the blocks of the prompts that it sent to each, the latest first.

    Args:
        num_blocks: kept for each replica, the least recently sent forgotten first; None: all.
        ttl_s: seconds after which a block that was not sent again is forgotten; None: never.
    """

    def __init__(self, num_blocks: int | None = None, ttl_s: float | None = None) -> None:
        self._num_blocks, self._ttl_s = num_blocks, ttl_s
        self._of: dict[int, OrderedDict[BlockHash, float]] = {}

    def sent(self, replica: int, keys: Sequence[BlockHash], now_s: float) -> None:
        """A prompt with these leading blocks was sent to `replica`."""
        kept = self._of.setdefault(replica, OrderedDict())
        for key in reversed(keys):  # leading blocks are the last to be forgotten
            kept[key] = now_s
            kept.move_to_end(key)
        while self._num_blocks is not None and len(kept) > self._num_blocks:
            kept.popitem(last=False)

    def matched(self, replica: int, keys: Sequence[BlockHash], now_s: float) -> int:
        """How many of these leading blocks `replica` is taken to hold."""
        kept = self._of.get(replica)
        if not kept:
            return 0
        oldest = None if self._ttl_s is None else now_s - self._ttl_s
        while oldest is not None and kept and next(iter(kept.values())) < oldest:
            kept.popitem(last=False)
        for depth, key in enumerate(keys):
            if key not in kept:
                return depth
        return len(keys)

    def drop(self, replica: int) -> None:
        """Forget all of `replica`."""
        self._of.pop(replica, None)
