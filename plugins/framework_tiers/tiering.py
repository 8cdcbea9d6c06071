"""The extension point for tiering rules: what moves between the tiers of a cache, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from framework.types import BlockHash

Event = Literal["written", "used", "evicted"]


@dataclass(frozen=True, slots=True)
class TierBlock:
    """What a rule may know of a block. Tier 0 is the pool; each tier below it has the next number.

    Attributes:
        key: the content's name: equal contents have equal keys, in every tier and across evictions.
        tier: where the block lies; what is asked about is the edge to `tier + 1`.
        depth: blocks between the root and this one; 0 for a prompt's first block.
        num_tokens: tokens up to and including this block: what recomputing it from nothing would prefill.
        uses: requests that used this content so far, the one at hand included, wherever it lay, and whether or not it
            was kept in between. A request uses all blocks of its prompt, also those behind the first miss.
    """

    key: BlockHash
    tier: int
    depth: int
    num_tokens: int
    uses: int


@dataclass(frozen=True, slots=True)
class LoadOffer:
    """A request's next blocks, which lie in tiers below the pool: what loading them costs and what it saves.

    Attributes:
        tiers: of each block in prompt order, the tier it lies in; 0 for one in between that the pool holds.
        num_tokens: of each block, the prompt's tokens up to and including it.
        cached_tokens: tokens ahead of the first of them, which the pool holds.
        prompt_tokens: of the whole prompt.
        load_s: of each block, predicted seconds until it and all before it are in the pool, the queues of the links
            included; None where no time is kept (cache-only replay).
        recompute_s: of each block, predicted seconds of prefilling all up to it; None where nobody knows.
    """

    tiers: tuple[int, ...]
    num_tokens: tuple[int, ...]
    cached_tokens: int
    prompt_tokens: int
    load_s: tuple[float, ...] | None = None
    recompute_s: tuple[float, ...] | None = None


class Tiering(ABC):
    """Which blocks are copied to the tier below, and which are loaded from it.

    A rule decides and moves nothing. It is asked about one edge at a time, from the tier in which a block lies to the
    next one, and only where the next one does not hold the block already:

    - "written": the block has just come to lie in its tier: computed or loaded in tier 0, stored in a lower one;
    - "used": a request that uses the block is about to end, and the block lay in its tier before;
    - "evicted": the tier's eviction policy gives the block up; what is not stored now is gone from this tier.

    Blocks of one request are asked about in prompt order, parents first. A store for which the tier below has no room
    (all of its blocks are in use) is dropped. A rule must be deterministic and may not keep what it is handed.
    """

    exclusive: bool = False
    """Whether a block that the pool gets back leaves the lower tiers, so that content lies in one tier at a time. A
    class or an instance attribute, read once when the run begins."""

    @abstractmethod
    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        """Whether to copy `block` to the tier below the one it lies in.

        Args:
            now: a PolicyTime, as eviction policies get it.
        """

    def load(self, offer: LoadOffer, now: float) -> int:
        """How many of the offered blocks, from the first on, to load; the rest of the prompt is recomputed.

        Returns:
            0 to `len(offer.tiers)`. Not overridden: all.
        """
        return len(offer.tiers)

    def prefetch(self, offer: LoadOffer, now: float) -> int:
        """How many of the offered blocks, from the first on, to bring up to tier 1 while their request waits for room.

        Asked once for each time a request is first in line and the pool has no room for it; blocks in tier 1 stay where
        they are. What a request loads into the pool, `load` decides when there is room.

        Returns:
            0 to `len(offer.tiers)`. Not overridden: none.
        """
        return 0
