"""Sequences of an engine that wait for blocks from the tiers below the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from framework.engine.below import Below
from framework.engine.request import Sequence as Row
from framework.engine.tiers.placement import Placement
from framework.engine.tiers.records import Load, Plan, TierSetup
from framework.errors import FrameworkError, InvariantViolation
from framework.interfaces.allocator import Hit
from framework.tiers.tier import Tier
from framework.tiers.transfers import Copy
from framework.types import BlockCopy as PoolCopy
from framework.types import BlockHash, BlockId, RequestId

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.state import EngineState
    from framework.kv_events.stream import EventStream


class EngineTiers(Below):
    """Loads for requests that wait, and stores of what the pool evicts or a rule wants below.

    NOTE 1. A sequence with blocks below the pool is given its whole table, and then no row until they are there, so it
    holds no row up, and its blocks, referenced by its table, cannot be evicted. Below, a block that is being loaded or
    stored is pinned in its tier. What the pool evicts while it is still to be stored is read first.
    NOTE 2. A failed load shortens what was found: the tokens from there on are computed.

    Attributes:
        loading, ready: sequences with a table and no row, blocks on their way or all there.
        placement: what lies where, and the stores.
    """

    def __init__(
        self, state: EngineState, life: Lifecycle, setup: TierSetup, stream: EventStream | None = None
    ) -> None:
        super().__init__()
        self._state, self._life, self._size = state, life, state.guarded.block_size
        self.placement = Placement(state, setup, stream)
        self._waiting: RequestId | None = None  # last asked about for a prefetch
        self.heard = self.placement.heard
        self.transfers, self._lower = self.placement.transfers, self.placement.lower
        self.arriving: dict[BlockHash, Load] = {}
        self.loading: dict[RequestId, Load] = {}
        self.dropped: list[Load] = []
        self._hits: dict[RequestId, Sequence[BlockHash]] = {}
        self.pool_hits = self.pool_hit_tokens = 0
        self.num_loads = self.num_loaded = self.load_wait_s = 0.0
        self.failed_loads = [0] * len(setup.tiers)

    # What changes in the pool

    def flush(self) -> None:
        self.placement.flush()

    def committed(self, seq: Row, before: int, after: int) -> None:
        self.placement.committed(seq, before, after)

    # A sequence that waits

    @property
    def full(self) -> bool:
        return len(self.loading) + len(self.ready) >= self._state.rows.max_rows

    def plan(self, seq: Row, hit: Hit) -> Plan | None:
        at, size = self.placement, self._size
        full, limit = hit.num_tokens // size, (len(seq.tokens) - 1) // size
        if full >= limit or len(hit.hashes) < limit or at.off:
            return None
        path = list(hit.hashes[:limit])
        if not at.holds(path[full]):
            return None
        places = list[int]()
        with at.sound():
            if at.rule.wants_load:
                at.contents.learn(path)
            places = at.lower.find(path, [n < full or key in at.pool for n, key in enumerate(path)], at.now)
        places = places[full:]
        while places and not places[-1]:
            places.pop()
        if not places:
            return None
        whole = Hit(full * size, hit.blocks[:full], hit.hashes, hit.version)
        return Plan(whole, path[full : full + len(places)], places)

    def prefetch(self, seq: Row, hit: Hit) -> None:
        at = self.placement
        if not at.rule.wants_prefetch or self._waiting == seq.id or (plan := self.plan(seq, hit)) is None:
            return
        self._waiting = seq.id
        path, first = list(hit.hashes), plan.hit.num_tokens // self._size
        with at.sound():
            at.contents.learn(path)
            offer = at.lower.offer(path, [0] * first + plan.places, first)
            count = at.rule.prefetch(offer, at.now)
            held = {key: place for key, place in zip(plan.keys, plan.places, strict=True) if place}
            pins = [(tier, [key for key in reversed(held) if key in tier]) for tier in at.lower.tiers]
            for tier, keys in pins:  # none of them is evicted for another
                tier.pin(keys, at.now)
            for key in plan.keys[:count]:
                if held.get(key, 0) > 1 and key not in at.lower.tiers[0]:
                    at.lower.lift(key, held[key], at.now)
            for tier, keys in pins:
                tier.unpin(keys, at.now)

    def park(self, seq: Row, plan: Plan) -> bool:
        load = next((self.arriving[key] for key in plan.keys if key in self.arriving), None)
        if load is None:
            return False
        load.parked.append(seq)
        return True

    def begin(self, seq: Row, hit: Hit, plan: Plan | None) -> bool:
        try:
            self._allocated(seq, hit, plan)
            if plan is not None:
                self._load(seq, plan)
        except Exception:
            if plan is not None:
                for tier, keys in self._by_tier(plan):
                    tier.unpin([key for key in keys if tier.is_pinned(key)], self.placement.now)
            self._life.free_table(seq)
            raise
        return plan is not None

    def _allocated(self, seq: Row, hit: Hit, plan: Plan | None) -> None:
        """Count what `seq` uses; then offer what was evicted for it."""
        if not self.placement.off:
            with self.placement.sound():
                if not seq.was_admitted and seq.id not in self._hits:  # once, however often it returns to wait
                    self._count(seq, hit, plan)
                if plan is not None:
                    for tier, keys in self._by_tier(plan):
                        tier.use(keys[::-1], self.placement.now)
        self.flush()

    def _count(self, seq: Row, hit: Hit, plan: Plan | None) -> None:
        full, path = hit.num_tokens // self._size, hit.hashes[: len(seq.request.prompt) // self._size]
        places = [0] * full + (plan.places if plan is not None else [])
        self.placement.contents.used(seq.info, path, len(seq.request.prompt), len(places))
        self.placement.contents.prune(self._holds)
        self._lower.count_hits(hit.hashes, places, [self._size] * len(places))
        self.pool_hits += places.count(0)
        self.pool_hit_tokens += hit.num_tokens + places[full:].count(0) * self._size
        self._hits[seq.id] = path[:full]

    def lies_below(self, key: BlockHash) -> bool:
        return self._lower.where(key) > 0 or key in self.arriving

    def _holds(self, key: BlockHash) -> bool:
        return self.placement.holds(key) or key in self.arriving

    def _by_tier(self, plan: Plan) -> Iterator[tuple[Tier, list[BlockHash]]]:
        for tier in self._lower.tiers:
            keys = [key for key, place in zip(plan.keys, plan.places, strict=True) if place == tier.number]
            if keys:
                yield tier, keys

    def _load(self, seq: Row, plan: Plan) -> None:
        """Load what is planned into the table of `seq`, which has just got it."""
        first, executor = len(plan.hit.blocks), self._state.executor
        table = self._state.guarded.table(seq.id, len(seq.tokens))
        blocks = table[first : first + len(plan.keys)].tolist()
        executor.fresh(table[first:])
        copies: list[Copy | None] = []
        within: list[PoolCopy] = []
        for key, place, block in zip(plan.keys, plan.places, blocks, strict=True):
            copy = Copy(key, place, 0, block, waited=True, begun_s=executor.now()) if place else None
            if not place:
                source = self.placement.pool.get(key)
                if source is None:  # evicted for this very table
                    copy = Copy(key, 0, 0, failed="evicted")
                else:
                    within.append(PoolCopy(BlockId(source), BlockId(block)))
            copies.append(copy)
        if within:
            executor.copy_blocks(within)
        wanted = [copy for copy in copies if copy is not None and copy.source]
        load = Load(seq, first, plan.keys, copies, len(wanted), executor.now())
        for copy in wanted:
            copy.load = load
            self.arriving[copy.key] = load
        self.loading[seq.id] = load
        self.num_loads += 1
        self._state.note("load", seq, blocks=len(wanted))
        self.transfers.submit(wanted)

    def drop(self, seq: Row, *, returning: bool = False) -> bool:
        at = next((at for at, (other, _) in enumerate(self.ready) if other is seq), None)
        if at is not None:
            del self.ready[at]
            self._free(seq, returning=returning)
            return True
        load = self.loading.pop(seq.id, None)
        if load is None:
            return False
        load.dropped, load.returns = True, returning
        self.dropped.append(load)
        return True

    def _free(self, seq: Row, *, returning: bool) -> None:
        self._life.free_table(seq)
        if returning and not seq.done:
            self._state.waiting.push(seq)
        else:
            self._hits.pop(seq.id, None)

    def yield_room(self) -> bool:
        if not self.ready:
            return False
        self.drop(self.ready[-1][0], returning=True)
        return True

    def ending(self, seq: Row) -> None:
        self.placement.used(self._hits.pop(seq.id, ()))

    def discard(self, seq: Row) -> None:
        self.placement.discard(self._state.guarded.table(seq.id))

    # As copies end

    def poll(self) -> None:
        for number, keys in self.transfers.discovered():
            if not self.placement.off:
                self.placement.adopt(number, keys)
        for copy in self.transfers.finished():
            if copy.target:
                self.placement.stored(copy)
            else:
                self._loaded(copy)

    def _loaded(self, copy: Copy) -> None:
        load: Load = copy.load
        tier = self._lower.tiers[copy.source - 1]
        if copy.failed and self.placement.setup.holds_kv[copy.source - 1]:
            self.failed_loads[copy.source - 1] += 1
        self.arriving.pop(copy.key, None)
        self.placement.end_at(tier, copy)
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
        good = next((at for at, copy in enumerate(load.copies) if copy is not None and copy.failed), len(load.copies))
        start, tokens = load.first * self._size, (load.first + good) * self._size
        waited = self._state.executor.now() - load.begun_s
        self.load_wait_s += waited
        self.num_loaded += sum(copy is not None for copy in load.copies[:good])
        seq.request.load_s += waited
        try:
            if good:
                self._state.guarded.commit(seq.id, seq.tokens[:tokens])
                self.committed(seq, start, tokens)
        except FrameworkError as error:
            self._life.free_table(seq)
            self._life.fail(seq, error)
            return
        if not seq.was_admitted:
            seq.request.num_loaded_tokens = tokens - start
            sources = [0 if copy is None else copy.source for copy in load.copies[:good]]
            seq.request.tier_tokens = {tier: self._size * sources.count(tier) for tier in {*sources} - {0}}
        self._state.note("loaded", seq, blocks=good)
        self.ready.append((seq, tokens))

    # Waiting, ending, results

    @property
    def busy(self) -> bool:
        return bool(self.loading or self.dropped)

    def wait(self, until: float | None) -> None:
        self.transfers.wait(until)

    def settle(self) -> None:
        """Wait for all copies under way: nothing is pinned after that."""
        while self.transfers.num_pending:
            self.transfers.wait(None)
            self.poll()

    def holding(self) -> list[Row]:
        return [load.seq for load in self.loading.values()] + [seq for seq, _ in self.ready]

    def close(self, *, drain: bool) -> None:
        self.transfers.close(drain=drain)

    def check(self, *, settle: bool = False) -> None:
        if settle:
            self.settle()
        if self.placement.off:
            return
        try:
            self._check()
        except AssertionError as error:
            raise InvariantViolation(f"EngineTiers: T1: {error}") from error

    def _check(self) -> None:
        at = self.placement
        at.lower.check()
        stale = [block for key, block in at.pool.items() if at.names.get(block) != key]
        assert not stale, f"blocks {stale} count as holding what they are not published with"
        if not (self.transfers.num_pending or self.loading or self.dropped):
            assert not self.arriving, self.arriving
            assert not at.reading, at.reading
            for tier in at.lower.tiers:
                pinned = [key for key in tier.block_of if tier.is_pinned(key)]
                assert not pinned, f"tier {tier.number}: {len(pinned)} blocks are pinned for no copy"

    def summary(self) -> dict[str, Any]:
        at = self.placement
        size = at.setup.block_bytes
        measured: dict[str, Any] = {
            "tier0_hit_blocks": self.pool_hits,
            "tier0_hit_tokens": self.pool_hit_tokens,
            "num_loads": int(self.num_loads),
            "loaded_blocks": int(self.num_loaded),
            "load_wait_s": self.load_wait_s,
        }
        for tier, loads, stores in zip(at.lower.tiers, self.failed_loads, at.failed_stores, strict=True):
            facts = {**tier.facts(size), "failed_loads": loads, "failed_stores": stores}
            measured |= {f"tier{tier.number}_{key}": value for key, value in facts.items()}
        measured |= {"tier_failure": at.first_failure} if at.first_failure else {}
        measured |= {"store_failure": self.transfers.failure} if self.transfers.failure else {}
        measured |= {"tiers_off": at.off} if at.off else {}
        return measured

    def step_row(self) -> dict[str, Any]:
        held = {f"tier{tier.number}_blocks": len(tier) for tier in self.placement.lower.tiers}
        return {**held, "loading": len(self.loading)}
