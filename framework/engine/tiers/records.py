"""Records of an engine's tiers: their specification, and sequences that load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from framework.engine.below import Below
from framework.engine.request import Sequence as Row
from framework.interfaces.allocator import Hit
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.tiering import Tiering
from framework.tiers.transfers import Copy, Transfers
from framework.types import BlockHash

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.state import EngineState
    from framework.engine.tiers.placement import Placement
    from framework.kv_events.stream import EventStream


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
        kind: of a further group of KV, as its results are called; empty of the first.
    """

    tiers: Sequence[tuple[int, EvictionPolicy]]
    rule: Tiering
    transfers: Transfers
    holds_kv: Sequence[bool]
    media: Sequence[str] = ()
    found: Sequence[Sequence[BlockHash]] = ()
    recompute_s: Callable[[int, int], float] | None = None
    block_bytes: int = 0
    kind: str = ""


MakeTiers = Callable[["EngineState", "Lifecycle", "EventStream | None"], Below]
"""Makes what lies below the pool of a new state."""


@dataclass(slots=True)
class Wanted:
    """Blocks of one group of KV that are to be loaded, a run of a prompt's.

    Attributes:
        at: what lies where in this group.
        first: their first index in the request's table.
        keys, places: of each, its content and its tier; 0 for one that the pool holds, and this table does not.
    """

    at: Placement
    first: int
    keys: list[BlockHash]
    places: list[int]


@dataclass(slots=True)
class Plan:
    """What of a prompt, beyond the pool's hit, is to be loaded.

    Attributes:
        hit: to allocate with: the pool's part, of whole blocks.
        found: leading blocks that need no load.
        places: the tier of each of the leading blocks, 0 for the pool; all that the request will have.
        parts: what to load, of each group of KV.
    """

    hit: Hit
    found: int
    places: list[int]
    parts: Sequence[Wanted]


@dataclass(slots=True, eq=False)
class Load:
    """A sequence whose blocks are on their way: it has a table, and no row.

    Attributes:
        copies: of each part's blocks, in order; None for one that was copied within the pool.
        left: copies under way.
        dropped: the sequence is to get nothing of it: it ended, or goes back to wait (`returns`).
        parked: sequences that wait for contents that this one loads.
    """

    seq: Row
    plan: Plan
    copies: list[list[Copy | None]]
    left: int
    begun_s: float
    dropped: bool = False
    returns: bool = False
    parked: list[Row] = field(default_factory=list)
