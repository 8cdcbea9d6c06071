"""Records of an engine's tiers: their specification, and sequences that load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from framework.engine.request import Sequence as Row
from framework.interfaces.allocator import Hit
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.tiering import Tiering
from framework.tiers.transfers import Copy, Transfers
from framework.types import BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSetup:
    """What an engine's tiers are made of, all of it fresh.

    Attributes:
        tiers: (num_blocks, policy) from tier 1 on.
        transfers: carry the copies out.
        media: what KV events call the place of each tier.
        holds_kv: of each tier, whether what is stored there can be loaded; else it only counts what it would have hit.
        found: of each tier, the contents that an earlier process left, least recently used first.
        recompute_s: (tokens cached, tokens in all) -> predicted seconds of prefilling the rest; None where unknown.
        block_bytes: bytes a block.
    """

    tiers: Sequence[tuple[int, EvictionPolicy]]
    rule: Tiering
    transfers: Transfers
    holds_kv: Sequence[bool]
    media: Sequence[str] = ()
    found: Sequence[Sequence[BlockHash]] = ()
    recompute_s: Callable[[int, int], float] | None = None
    block_bytes: int = 0


MakeTiers = Callable[[], TierSetup]


@dataclass(slots=True)
class Plan:
    """What of a prompt, beyond the pool's hit, is to be loaded.

    Attributes:
        hit: the pool's part, of whole blocks.
        keys, places: of the blocks after it, and the tier of each; 0 for one that the pool holds beyond a gap.
    """

    hit: Hit
    keys: list[BlockHash]
    places: list[int]


@dataclass(slots=True, eq=False)
class Load:
    """A sequence whose blocks are on their way: it has a table, and no row.

    Attributes:
        first: blocks that the pool held.
        copies: of the blocks after them, in order; None for one that was copied within the pool.
        left: copies under way.
        dropped: the sequence is to get nothing of it: it ended, or goes back to wait (`returns`).
        parked: sequences that wait for contents that this one loads.
    """

    seq: Row
    first: int
    keys: list[BlockHash]
    copies: list[Copy | None]
    left: int
    begun_s: float
    dropped: bool = False
    returns: bool = False
    parked: list[Row] = field(default_factory=list)
