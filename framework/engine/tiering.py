"""The tiers below the pool in an engine: what is loaded for which request, and what is stored as blocks come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from framework.engine.request import Sequence as Row
from framework.engine.tier_contents import KnownContents
from framework.engine.tier_events import TierEvents
from framework.engine.tier_records import Load, Plan, TierSetup, measured_prefill
from framework.errors import FrameworkError, PluginError
from framework.interfaces.allocator import CacheEvent, Hit
from framework.interfaces.tiering import Event
from framework.tiers.movement import LowerTiers
from framework.tiers.tier import Tier
from framework.tiers.transfers import Copy
from framework.types import BlockCopy as PoolCopy
from framework.types import BlockHash, BlockId, RequestId

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.state import EngineState
    from framework.kv_events.stream import EventStream


class EngineTiers:
    """Loads for requests that wait, and stores of what the pool evicts or a rule wants below.

    NOTE 1. A sequence with blocks below the pool is given its whole table, and then no row until they are there, so it
    holds no row up, and its blocks, referenced by its table, cannot be evicted. Below, a block that is being loaded or
    stored is pinned in its tier. What the pool evicts while it is still to be stored is read first.
    NOTE 2. A failed load shortens what was found: the tokens from there on are computed. A rule or a policy that
    breaks its contract turns all tiers off, because they are half changed; the requests go on without them.

    Attributes:
        loading, ready: sequences with a table and no row, blocks on their way or all there.
        off: why the tiers were turned off; empty while they work.
    """

    def __init__(
        self, state: EngineState, life: Lifecycle, setup: TierSetup, stream: EventStream | None = None
    ) -> None:
        self._state, self._life, self.setup = state, life, setup
        self.transfers, self._size = setup.transfers, state.guarded.block_size
        held = state.guarded.num_blocks + sum(num_blocks for num_blocks, _ in setup.tiers)
        requests = any(policy.needs_requests for _, policy in setup.tiers)
        self.contents = KnownContents(self._size, 4 * held, with_requests=requests)
        tiers = [Tier(n, count, policy, self.contents) for n, (count, policy) in enumerate(setup.tiers, start=1)]
        self.lower = LowerTiers(tiers, setup.rule, self.contents, self, self._costs)
        self._uses = self.lower.rule
        self.events = None if stream is None else TierEvents(stream, setup.media, self._size, self.contents)
        self.names: dict[int, BlockHash] = {}  # of published blocks, promised ones included
        self.pool: dict[BlockHash, int] = {}  # contents whose KV the pool holds
        self._waiting: RequestId | None = None  # last asked about for a prefetch
        self._evicted: list[tuple[int, BlockHash]] = []
        self.reading: dict[int, list[Copy]] = {}  # blocks of the pool with stores under way
        self.arriving: dict[BlockHash, Load] = {}
        self.loading: dict[RequestId, Load] = {}
        self.ready: list[tuple[Row, int]] = []  # (sequence, tokens cached)
        self.dropped: list[Load] = []
        self._hits: dict[RequestId, Sequence[BlockHash]] = {}
        self.pool_hits = self.pool_hit_tokens = 0
        self.num_loads = self.num_loaded = self.load_wait_s = 0.0
        self.failed_loads, self.failed_stores = [0] * len(tiers), [0] * len(tiers)
        self.first_failure = self.off = ""
        for number, keys in enumerate(setup.found, start=1):
            self._adopt(number, list(keys)[-tiers[number - 1].num_blocks :])

    def _adopt(self, number: int, keys: Sequence[BlockHash]) -> None:
        """Hold what another process stored in a tier, as far as there is room."""
        tier = self.lower.tiers[number - 1]
        with self._sound():
            for key in keys:
                if key not in tier and len(tier) < tier.num_blocks:
                    self.contents.found(key)
                    tier.adopt(key, self._now)
                    if self.events is not None:
                        self.events.stored(key, number)

    # What the allocator says

    def heard(self, event: CacheEvent) -> None:
        """A block was published or evicted."""
        if event.kind == "admit":
            self.names[event.block] = event.key
        else:
            self.names.pop(event.block, None)
            self._evicted.append((event.block, event.key))

    def flush(self) -> None:
        """Offer what was evicted to the tier below. Before any of it is overwritten."""
        if not self._evicted:
            return
        evicted, self._evicted = self._evicted, []
        for block, key in evicted:
            if self.pool.get(key) == block:  # else it was promised and never computed
                with self._sound():
                    if not self.off:
                        self.lower.evicted(key, self._now)
                del self.pool[key]
            for copy in self.reading.pop(block, ()):
                self.transfers.release(copy)

    @property
    def _now(self) -> float:
        return float(self._state.step_number)

    def _sound(self) -> _Sound:
        return _Sound(self)

    # Moves, for LowerTiers

    def copy(self, key: BlockHash, source: int, target: int) -> None:
        """See Moves."""
        block = 0 if source else self.pool[key]
        copy = Copy(key, source, target, block, begun_s=self._state.executor.now())
        if block:
            self.reading.setdefault(block, []).append(copy)
        self.transfers.submit((copy,))

    def remove(self, key: BlockHash, tier: int) -> None:
        """See Moves."""
        self.transfers.remove(key, tier)
        if self.events is not None:
            self.events.removed(key, tier)

    # A sequence that waits

    @property
    def full(self) -> bool:
        """Whether as many sequences load, or wait with all there for a row, as there are rows."""
        return len(self.loading) + len(self.ready) >= self._state.rows.max_rows

    def plan(self, seq: Row, hit: Hit) -> Plan | None:
        """What to load for `seq` beyond the pool's hit; None if nothing."""
        full, limit = hit.num_tokens // self._size, (len(seq.tokens) - 1) // self._size
        if full >= limit or len(hit.hashes) < limit or self.off:
            return None
        path = list(hit.hashes[:limit])
        if not (path[full] in self.pool or self.lower.where(path[full])):
            return None
        places = list[int]()
        with self._sound():
            if self._uses.wants_load:
                self.contents.learn(path)
            places = self.lower.find(path, [at < full or key in self.pool for at, key in enumerate(path)], self._now)
        places = places[full:]
        while places and not places[-1]:
            places.pop()
        if not places:
            return None
        whole = Hit(full * self._size, hit.blocks[:full], hit.hashes, hit.version)
        return Plan(whole, path[full : full + len(places)], places)

    def prefetch(self, seq: Row, hit: Hit) -> None:
        """`seq` is first in line and the pool has no room: bring its blocks up to tier 1 as far as the rule says."""
        if not self._uses.wants_prefetch or self._waiting == seq.id or (plan := self.plan(seq, hit)) is None:
            return
        self._waiting = seq.id
        path, first = list(hit.hashes), plan.hit.num_tokens // self._size
        with self._sound():
            self.contents.learn(path)
            offer = self.lower.offer(path, [0] * first + plan.places, first)
            count = self._uses.prefetch(offer, self._now)
            held = {key: place for key, place in zip(plan.keys, plan.places, strict=True) if place}
            pins = [(tier, [key for key in reversed(held) if key in tier]) for tier in self.lower.tiers]
            for tier, keys in pins:  # none of them is evicted for another
                tier.pin(keys, self._now)
            for key in plan.keys[:count]:
                if held.get(key, 0) > 1 and key not in self.lower.tiers[0]:
                    self.lower.lift(key, held[key], self._now)
            for tier, keys in pins:
                tier.unpin(keys, self._now)

    def park(self, seq: Row, plan: Plan) -> bool:
        """Let `seq` wait for contents that another sequence is loading already; False if there are none."""
        load = next((self.arriving[key] for key in plan.keys if key in self.arriving), None)
        if load is None:
            return False
        load.parked.append(seq)
        return True

    def allocated(self, seq: Row, hit: Hit, plan: Plan | None) -> None:
        """`seq` has its table: count what it uses; then offer what was evicted for it."""
        if not self.off:
            with self._sound():
                if not seq.was_admitted and seq.id not in self._hits:  # once, however often it returns to wait
                    self._count(seq, hit, plan)
                if plan is not None:
                    for tier, keys in self._by_tier(plan):
                        tier.use(keys[::-1], self._now)
        self.flush()

    def _count(self, seq: Row, hit: Hit, plan: Plan | None) -> None:
        full, path = hit.num_tokens // self._size, hit.hashes[: len(seq.request.prompt) // self._size]
        places = [0] * full + (plan.places if plan is not None else [])
        self.contents.used(seq.info, path, len(seq.request.prompt), len(places))
        self.contents.prune(self._holds)
        self.lower.count_hits(hit.hashes, places, [self._size] * len(places))
        self.pool_hits += places.count(0)
        self.pool_hit_tokens += hit.num_tokens + places[full:].count(0) * self._size
        self._hits[seq.id] = path[:full]

    def _holds(self, key: BlockHash) -> bool:
        return key in self.pool or self.lower.where(key) > 0 or key in self.arriving

    def _by_tier(self, plan: Plan) -> Iterator[tuple[Tier, list[BlockHash]]]:
        for tier in self.lower.tiers:
            keys = [key for key, place in zip(plan.keys, plan.places, strict=True) if place == tier.number]
            if keys:
                yield tier, keys

    def begin(self, seq: Row, plan: Plan) -> None:
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
                source = self.pool.get(key)
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

    def abandon(self, plan: Plan) -> None:
        """The load that was planned cannot begin: nothing of it is pinned any more."""
        for tier, keys in self._by_tier(plan):
            tier.unpin([key for key in keys if tier.is_pinned(key)], self._now)

    def drop(self, seq: Row, *, returning: bool = False) -> bool:
        """Free what `seq`, which has no row, holds: at once, or when its loads have ended. False if it holds nothing.

        Args:
            returning: it waits again after that.
        """
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
        """Let one sequence without a row give its blocks up, the latest first; False if none could."""
        if not self.ready:
            return False
        self.drop(self.ready[-1][0], returning=True)
        return True

    # As blocks come to lie in the pool

    def committed(self, seq: Row, before: int, after: int, event: Event = "written") -> None:
        """The KV of the tokens from `before` to `after` of `seq`, which has a table, is in the pool."""
        first, last = before // self._size, after // self._size
        if last <= first or self.off:
            return
        blocks = self._state.guarded.table(seq.id, start=max(0, first - 1))
        above = self.names.get(int(blocks[first - 1])) if first else None
        with self._sound():
            for depth, block in enumerate(blocks[first:last].tolist(), start=first):
                key = self.names.get(block)
                if key is None:  # not published: a collision, or a fork's that shares nothing
                    break
                self.pool[key] = block
                self.contents.computed(key, depth, above)
                self._lies_in_pool(key, event)
                above = key

    def _lies_in_pool(self, key: BlockHash, event: Event) -> None:
        if self._uses.exclusive:
            for tier in self.lower.tiers:
                if key in tier and not tier.is_pinned(key):
                    self.lower.drop(tier, [key], self._now)
        self.lower.ask(key, event, self._now, pinned=False)

    def ending(self, seq: Row) -> None:
        """`seq` is about to free its table."""
        keys = self._hits.pop(seq.id, ())
        if self.off:
            return
        with self._sound():
            for key in keys:
                if key in self.pool:
                    self.lower.ask(key, "used", self._now, pinned=False)

    # As copies end

    def poll(self) -> None:
        """Take note of the copies that have ended; sequences with all their blocks are ready."""
        for number, keys in self.transfers.discovered():
            if not self.off:
                self._adopt(number, keys)
        for copy in self.transfers.finished():
            if copy.target:
                self._stored(copy)
            else:
                self._loaded(copy)

    def _stored(self, copy: Copy) -> None:
        reading = self.reading.get(copy.block)
        if reading is not None and copy in reading:
            reading.remove(copy)
            if not reading:
                del self.reading[copy.block]
        tier = self.lower.tiers[copy.target - 1]
        if copy.failed:
            self.failed_stores[copy.target - 1] += 1
        elif self.events is not None:
            self.events.stored(copy.key, copy.target)
        self._end_at(tier, copy)
        if copy.source > copy.target and self._uses.exclusive and not copy.failed and not self.off:
            lower = self.lower.tiers[copy.source - 1]  # it was lifted: one copy stays
            if copy.key in lower and not lower.is_pinned(copy.key):
                self.lower.drop(lower, [copy.key], self._now)

    def _end_at(self, tier: Tier, copy: Copy) -> None:
        """Unpin what was copied to or from `tier`; where that failed, the content is lost there."""
        lost = bool(copy.failed) and self.setup.holds_kv[tier.number - 1]
        if lost:
            self.first_failure = self.first_failure or copy.failed
        if self.off:
            return
        with self._sound():
            tier.unpin((copy.key,), self._now)
            if lost and not tier.is_pinned(copy.key):
                tier.lose(copy.key, self._now)
                self.remove(copy.key, tier.number)

    def _loaded(self, copy: Copy) -> None:
        load: Load = copy.load
        tier = self.lower.tiers[copy.source - 1]
        if copy.failed and self.setup.holds_kv[copy.source - 1]:
            self.failed_loads[copy.source - 1] += 1
        self.arriving.pop(copy.key, None)
        self._end_at(tier, copy)
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
        """Whether a load is under way: time alone brings something on."""
        return bool(self.loading or self.dropped)

    def wait(self, until: float | None) -> None:
        """Let time pass until a copy ends, at most to `until`."""
        self.transfers.wait(until)

    def settle(self) -> None:
        """Wait for all copies under way: nothing is pinned after that."""
        while self.transfers.num_pending:
            self.transfers.wait(None)
            self.poll()

    def holding(self) -> list[Row]:
        """The sequences that hold a table and no row."""
        return [load.seq for load in self.loading.values()] + [seq for seq, _ in self.ready]

    def relying(self, requests: set[RequestId]) -> list[Row]:
        """Those of these that hold a table and no row."""
        return [seq for seq in self.holding() if seq.id in requests]

    def _costs(
        self, tiers: Sequence[int], num_tokens: Sequence[int], cached: int
    ) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """See `movement.Costs`."""
        estimate = self.setup.recompute_s or measured_prefill(self._state.metrics)
        recompute = None if estimate is None else tuple(estimate(cached, tokens) for tokens in num_tokens)
        return self.transfers.load_times(tiers), recompute

    def close(self, *, drain: bool) -> None:
        """End the transfers."""
        self.transfers.close(drain=drain)


class _Sound:
    """A context in which tiers change: a plugin that breaks its contract in it turns them off, and the run goes on."""

    def __init__(self, tiers: EngineTiers) -> None:
        self._tiers = tiers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, PluginError):
            return False
        tiers = self._tiers
        tiers.off = tiers.off or str(error)
        return True
