"""Sequences of an engine that wait for blocks from the tiers below the pool."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from framework.errors import InvalidArgument, InvariantViolation
from framework.groups.allocator import GroupedAllocator
from framework.interfaces.allocator import Hit
from framework.interfaces.below import EngineBelow
from framework.interfaces.groups import find_hit
from framework.types import BlockCopy as PoolCopy
from framework.types import BlockHash, BlockId, RequestId
from framework_tiers.placement import Placement, TierSetup
from framework_tiers.tier import Tier
from framework_tiers.transfers import Copy

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.request import Sequence
    from framework.engine.state import EngineState

_SOON_S = 0.01
_TOTALS = ("bytes_in", "bytes_out", "failed_loads", "failed_stores")


@dataclass(slots=True)
class Wanted:
    """Blocks of one group of KV that are to be loaded, a run of a prompt's.

    Attributes:
        placement: what lies where in this group.
        first: their first index in the request's table.
        keys, places: of each, its content and its tier; 0 for one that the pool holds, and this table does not.
    """

    placement: Placement
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
        num_tokens: of the prompt that are there once it is loaded.
    """

    hit: Hit
    found: int
    places: list[int]
    parts: SequenceOf[Wanted]
    num_tokens: int


@dataclass(slots=True, eq=False)
class Load:
    """A sequence whose blocks are on their way: it has a table, and no row.

    Attributes:
        copies: of each part's blocks, in order; None for one that was copied within the pool.
        left: copies under way.
        dropped: the sequence is to get nothing of it: it ended, or goes back to wait (`returns`).
        parked: sequences that wait for contents that this one loads.
    """

    seq: Sequence
    plan: Plan
    copies: list[list[Copy | None]]
    left: int
    begun_s: float
    dropped: bool = False
    returns: bool = False
    parked: list[Sequence] = field(default_factory=list)


class EngineTiers(EngineBelow):
    """Loads for requests that wait, and stores of what the pool evicts or a rule wants below.

    NOTE 1. A sequence with blocks below the pool is given a table for them, and no row until they are there, so it
    holds no row up, and its blocks, referenced by its table, cannot be evicted. Below, a block that is being loaded or
    stored is pinned in its tier. What the pool evicts while it is still to be stored is read first.
    NOTE 2. A failed load shortens what was found: the tokens from there on are computed.

    Attributes:
        loading, ready: sequences with a table and no row, blocks on their way or all there.
        placement: what lies where, and the stores; `placements` of each group of KV.
    """

    def __init__(self, state: EngineState, life: Lifecycle, setup: TierSetup, *further: TierSetup) -> None:
        super().__init__()
        self._state, self._life, self._size = state, life, state.guarded.block_size
        self.placement = Placement(state, setup)
        others = (Placement(state, other, group, self.placement) for group, other in enumerate(further, 1))
        self.placements = [self.placement, *others]
        self._waiting: RequestId | None = None  # last asked about for a prefetch
        state.listeners.append(self.placement.heard)
        self.transfers, self._lower = self.placement.transfers, self.placement.lower
        self.loading: dict[RequestId, Load] = {}
        self.dropped: list[Load] = []
        self._hits: dict[RequestId, SequenceOf[BlockHash]] = {}
        self.pool_hits = 0
        self.num_loads = self.num_loaded = self.load_wait_s = 0.0

    # What changes in the pool

    def flush(self) -> None:
        for placement in self.placements:
            placement.flush()

    def committed(self, seq: Sequence, before: int, after: int) -> None:
        for placement in self.placements:
            placement.committed(seq, before, after)

    # A sequence that waits

    @property
    def full(self) -> bool:
        return len(self.loading) + len(self.ready) >= self._state.rows.max_rows

    def plan(self, seq: Sequence, hit: Hit) -> Plan | None:
        placement, size = self.placement, self._size
        full, limit = hit.num_tokens // size, (len(seq.tokens) - 1) // size
        if full >= limit or len(hit.hashes) < limit:
            return None
        path = list(hit.hashes[:limit])
        if not placement.holds(path[full]):
            return None
        places = list[int]()
        if placement.rule.wants_load:
            placement.contents.learn(path)
        places = placement.lower.find(
            path, [n < full or key in placement.pool for n, key in enumerate(path)], placement.now
        )
        places = places[full:]
        while places and not places[-1]:
            places.pop()
        if not places:
            return None
        whole = Hit(full * size, hit.blocks[:full], hit.hashes, hit.version)
        wanted = Wanted(placement, full, path[full : full + len(places)], places)
        return Plan(whole, full, [0] * full + places, [wanted], (full + len(places)) * size)

    def prefetch(self, seq: Sequence, hit: Hit) -> None:
        placement = self.placement
        if not placement.rule.wants_prefetch or self._waiting == seq.id or (plan := self.plan(seq, hit)) is None:
            return
        self._waiting = seq.id
        path, wanted = list(hit.hashes), plan.parts[0]
        placement.contents.learn(path)
        offer = placement.lower.offer(path, [0] * wanted.first + wanted.places, wanted.first)
        count = placement.rule.prefetch(offer, placement.now)
        tier_of = {key: place for key, place in zip(wanted.keys, wanted.places, strict=True) if place}
        pins = [(tier, [key for key in reversed(tier_of) if key in tier]) for tier in placement.lower.tiers]
        for tier, keys in pins:  # none of them is evicted for another
            tier.pin(keys, placement.now)
        for key in wanted.keys[:count]:
            if tier_of.get(key, 0) > 1 and key not in placement.lower.tiers[0]:
                placement.lower.lift(key, tier_of[key], placement.now)
        for tier, keys in pins:
            tier.unpin(keys, placement.now)

    def park(self, seq: Sequence, plan: Plan) -> bool:
        for part in plan.parts:
            for key in part.keys:
                if key in part.placement.arriving:
                    part.placement.arriving[key].load.parked.append(seq)
                    return True
        return False

    def begin(self, seq: Sequence, hit: Hit, plan: Plan | None) -> bool:
        self._use(seq, hit, plan)
        self.flush()  # what was evicted for it
        if plan is not None:
            self._load(seq, plan)
        return plan is not None

    def _use(self, seq: Sequence, hit: Hit, plan: Plan | None) -> None:
        """Count what `seq` uses, and pin it below."""
        if not seq.was_admitted and seq.id not in self._hits:  # once, however often it returns to wait
            self._count(seq, hit, plan)
        for tier, keys in () if plan is None else _by_tier(plan):
            tier.use(keys[::-1], self.placement.now)

    def _count(self, seq: Sequence, hit: Hit, plan: Plan | None) -> None:
        full, path = hit.num_tokens // self._size, hit.hashes[: len(seq.request.prompt) // self._size]
        places = [0] * full if plan is None else plan.places
        self.placement.contents.used(seq.info, path, len(seq.request.prompt), len(places))
        self.placement.contents.prune(lambda key: any(placement.holds(key) for placement in self.placements))
        for part in () if plan is None else plan.parts:
            part.placement.lower.count_hits(part.keys, part.places)
        self.pool_hits += places.count(0)
        self._hits[seq.id] = path[:full]

    def lies_below(self, key: BlockHash) -> bool:
        return self._lower.where(key) > 0 or key in self.placement.arriving

    def _load(self, seq: Sequence, plan: Plan) -> None:
        """Load what is planned into the table of `seq`, which has just got it."""
        executor = self._state.executor
        copies = [self._copies(seq, part, plan.num_tokens) for part in plan.parts]
        wanted = [[copy for copy in part if copy is not None and copy.source] for part in copies]
        load = Load(seq, plan, copies, sum(map(len, wanted)), executor.now())
        for part, coming in zip(plan.parts, wanted, strict=True):
            for copy in coming:
                copy.load = load
                part.placement.arriving[copy.key] = copy
        self.loading[seq.id] = load
        self.num_loads += 1
        self._state.note("load", seq, blocks=load.left)
        for part, coming in zip(plan.parts, wanted, strict=True):
            part.placement.transfers.submit(coming)

    def _copies(self, seq: Sequence, part: Wanted, num_tokens: int) -> list[Copy | None]:
        """Copies into the table of `seq`, which has just got it; those within the pool are carried out."""
        executor, group = self._state.executor, part.placement.group
        table = part.placement.table(seq.id, num_tokens)
        blocks = table[part.first : part.first + len(part.keys)].tolist()
        if not group:
            executor.fresh(table[part.first :])
        copies: list[Copy | None] = []
        within: list[PoolCopy] = []
        for key, place, block in zip(part.keys, part.places, blocks, strict=True):
            source = part.placement.pool.get(key)
            if place or source is None:  # of place 0: evicted for this very table
                copies.append(Copy(key, place, 0, block, failed="" if place else "evicted"))
            else:
                copies.append(None)
                within.append(PoolCopy(BlockId(source), BlockId(block), group))
        if within:
            executor.copy_blocks(within)
        return copies

    def drop(self, seq: Sequence, *, returning: bool = False) -> None:
        others = [one for one in self.ready if one[0] is not seq]
        if len(others) < len(self.ready):
            self.ready[:] = others
            self._free(seq, returning=returning)
        elif (load := self.loading.pop(seq.id, None)) is not None:
            load.dropped, load.returns = True, returning
            self.dropped.append(load)

    def _free(self, seq: Sequence, *, returning: bool) -> None:
        self._life.free_table(seq)
        if returning and not seq.done:
            self._state.waiting.push(seq)
        else:
            self._hits.pop(seq.id, None)

    def ending(self, seq: Sequence) -> bool:
        keys = self._hits.pop(seq.id, ())
        for placement in self.placements:
            placement.used(keys)
        return False

    def discard(self, seq: Sequence) -> None:
        for placement in self.placements:
            placement.discard(placement.table(seq.id))

    # As copies end

    def poll(self) -> None:
        for placement in self.placements:
            for number, keys in placement.transfers.discovered():
                placement.adopt(number, keys)
            for copy in placement.transfers.finished():
                if copy.target:
                    placement.stored(copy)
                else:
                    self._loaded(placement, copy)

    def _loaded(self, placement: Placement, copy: Copy) -> None:
        load: Load = copy.load
        if copy.failed and placement.setup.holds_kv[copy.source - 1]:
            placement.failed_loads[copy.source - 1] += 1
        placement.arriving.pop(copy.key, None)
        placement.end_at(placement.lower.tiers[copy.source - 1], copy)
        load.left -= 1
        if not load.left:
            self._arrived(load)

    def _arrived(self, load: Load) -> None:
        """All copies of a load have ended, well or not."""
        seq = load.seq
        for other in load.parked:
            if not other.done:
                self._state.waiting.push(other)
        if load.dropped:
            self.dropped.remove(load)
            self._free(seq, returning=load.returns)
            return
        del self.loading[seq.id]
        waited = self._state.executor.now() - load.begun_s
        self.load_wait_s += waited
        seq.request.load_s += waited
        blocks = self._usable(load)
        if blocks is None:
            self._free(seq, returning=True)
            return
        found, tokens = load.plan.found, blocks * self._size
        self.num_loaded += sum(
            copy is not None and not copy.failed and (part.first + n) * part.placement.block_size < tokens
            for part, copies in zip(load.plan.parts, load.copies, strict=True)
            for n, copy in enumerate(copies)
        )
        if blocks > found:
            self._state.guarded.commit(seq.id, seq.tokens[:tokens])
            for part in load.plan.parts:
                part.placement.committed(seq, part.first * part.placement.block_size, tokens)
        if not seq.was_admitted:
            sources = load.plan.places[found:blocks]
            seq.request.num_loaded_tokens = len(sources) * self._size
            seq.request.tier_tokens = {tier: self._size * sources.count(tier) for tier in {*sources} - {0}}
        self._state.note("loaded", seq, blocks=blocks - found)
        self.ready.append((seq, tokens))

    def _usable(self, load: Load) -> int | None:
        """Leading blocks of the table that hold their contents now; None: the sequence has to begin anew."""
        [copies] = load.copies
        failed = (index for index, copy in enumerate(copies) if copy is not None and copy.failed)
        return load.plan.found + next(failed, len(copies))

    # Waiting, ending, results

    @property
    def busy(self) -> bool:
        return bool(self.loading or self.dropped)

    def wait(self, until: float | None) -> None:
        busy = [placement.transfers for placement in self.placements if placement.transfers.num_pending]
        if len(busy) > 1:  # of the others a copy may end first
            soon = self._state.executor.now() + _SOON_S
            until = soon if until is None else min(until, soon)
        for transfers in busy[:1]:
            transfers.wait(until)

    def holding(self) -> list[Sequence]:
        """The sequences that hold a table and no row."""
        return [load.seq for load in self.loading.values()] + [seq for seq, _ in self.ready]

    def close(self, *, drain: bool) -> None:
        for placement in self.placements:
            placement.transfers.close(drain=drain)

    def check(self, *, settle: bool = False) -> None:
        while settle and any(placement.transfers.num_pending for placement in self.placements):
            self.wait(None)
            self.poll()
        try:
            for placement in self.placements:
                placement.check(idle=not (placement.transfers.num_pending or self.loading or self.dropped))
        except AssertionError as error:
            raise InvariantViolation(f"EngineTiers: T1: {error}") from error

    def summary(self) -> dict[str, Any]:
        measured: dict[str, Any] = {
            "tier0_hit_blocks": self.pool_hits,
            "num_loads": int(self.num_loads),
            "loaded_blocks": int(self.num_loaded),
            "load_wait_s": self.load_wait_s,
        }
        for placement in reversed(self.placements):
            kind, failed = placement.setup.kind, zip(placement.failed_loads, placement.failed_stores, strict=True)
            for tier, (loads, stores) in zip(placement.lower.tiers, failed, strict=True):
                facts = {**tier.facts(placement.setup.block_bytes), "failed_loads": loads, "failed_stores": stores}
                if placement.group:  # bytes and failures are a tier's, of all groups
                    hits = {} if kind == "full" else {f"{kind}_hit_blocks": facts["hit_blocks"]}
                    facts = {**hits, **{key: facts[key] for key in _TOTALS}}
                for key, value in facts.items():
                    key = f"tier{tier.number}_{key}"
                    measured[key] = measured.get(key, 0) + value
            measured |= {"tier_failure": placement.first_failure} if placement.first_failure else {}
            measured |= {"store_failure": placement.transfers.failure} if placement.transfers.failure else {}
        return measured

    def step_row(self) -> dict[str, Any]:
        blocks = {f"tier{tier.number}_blocks": len(tier) for tier in self.placement.lower.tiers}
        return {**blocks, "loading": len(self.loading)}


class GroupedTiers(EngineTiers):
    """Each group has tiers of its own; a prompt is loaded to where all can go on from, pools and tiers together.

    The rule is asked how far to load the first group, of full attention; what the others need there is loaded with it.
    Of windows and states those are stored that the allocator publishes, as its rule keeps them.

    A load that fails leaves a table without what it needs, and nothing shorter would do: the request begins anew with
    what the pools hold, and loads no more.

    Raises:
        InvalidArgument: not over a GroupedAllocator.
    """

    def __init__(self, state: EngineState, life: Lifecycle, *setups: TierSetup) -> None:
        super().__init__(state, life, *setups)
        groups = state.guarded.plugin
        if not isinstance(groups, GroupedAllocator):
            raise InvalidArgument(f"tiers of groups lie below a GroupedAllocator, found {type(groups).__name__}")
        self._groups, self._further = groups, self.placements[1:]
        self._loads_no_more: set[RequestId] = set()
        state.listeners += [placement.heard for placement in self._further]

    def plan(self, seq: Sequence, hit: Hit) -> Plan | None:
        first, further, size = self.placement, self._further, self._size
        limit = (len(seq.tokens) - 1) // size
        if hit.num_tokens >= limit * size or seq.id in self._loads_no_more or len(hit.hashes) < limit:
            return None
        self.flush()  # what was evicted since lies in no pool
        path = list(hit.hashes[:limit])
        num_full = self._groups.num_resident(path)
        places = [0] * num_full
        if num_full < limit and first.holds(path[num_full]):
            if first.rule.wants_load:
                first.contents.learn(path)
            in_pool = [n < num_full or key in first.pool for n, key in enumerate(path)]
            places = first.lower.find(path, in_pool, first.now)
        others = self._groups.groups[1:]
        names = [at.names_of(path) for at in further]
        resumed = find_hit(
            others, lambda g, n: n < len(names[g]) and further[g].holds(names[g][n]), len(places) * size
        ).tokens
        if resumed <= hit.num_tokens:
            return None
        found, end = hit.num_tokens // size, resumed // size
        wanted = [Wanted(first, min(num_full, end), path[num_full:end], places[num_full:end])]
        for at, group, called in zip(further, others, names, strict=True):
            needed = group.needs(resumed)
            keys = [*called[needed.start : needed.stop]]
            lies = [0 if key in at.pool else at.lower.where(key) for key in keys]
            wanted.append(Wanted(at, needed.start, keys, lies))
        if not any(place for part in wanted for place in part.places):
            return None
        lowest = max((place for part in wanted[1:] for place in part.places), default=0)  # at a chunk's begin nothing
        origins = [0] * found + [max(place, lowest) for place in places[found:end]]
        return Plan(self._groups.reaching(hit, resumed), found, origins, wanted, resumed)

    def _usable(self, load: Load) -> int | None:
        if any(copy is not None and copy.failed for copies in load.copies for copy in copies):
            self._loads_no_more.add(load.seq.id)
            return None
        return len(load.plan.places)

    def ending(self, seq: Sequence) -> bool:
        self._loads_no_more.discard(seq.id)
        return super().ending(seq)


def _by_tier(plan: Plan) -> Iterator[tuple[Tier, list[BlockHash]]]:
    for part in plan.parts:
        for tier in part.placement.lower.tiers:
            keys = [key for key, place in zip(part.keys, part.places, strict=True) if place == tier.number]
            if keys:
                yield tier, keys
