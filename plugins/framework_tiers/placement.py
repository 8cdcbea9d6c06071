"""Contents of the pool and of the tiers below it in an engine, and the stores that keep them there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.interfaces.allocator import CacheEvent
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.observer import Call, Move
from framework.paged.pool import PromptEnds, facts_of
from framework.types import UNKNOWN_REQUEST, BlockHash, BlockId, PolicyTime, RequestFacts, RequestId, RequestInfo
from framework_tiers.movement import LowerTiers, Moves
from framework_tiers.tier import Tier
from framework_tiers.tiering import Tiering
from framework_tiers.transfers import Copy, Transfers

if TYPE_CHECKING:
    from framework.engine.request import Sequence
    from framework.engine.state import EngineState


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

    tiers: SequenceOf[tuple[int, EvictionPolicy]]
    rule: Tiering
    transfers: Transfers
    holds_kv: SequenceOf[bool]
    media: SequenceOf[str] = ()
    found: SequenceOf[SequenceOf[BlockHash]] = ()
    recompute_s: Callable[[int, int], float] | None = None
    block_bytes: int = 0
    kind: str = ""


class Placement(Moves):
    """Which content lies where: it follows the allocator's events, asks the rule about stores and begins them.

    Args:
        group: number of the group of KV. first: that of the first one, for a further one; None for the first.

    Attributes:
        names: contents of the pool's published blocks, those included that the step at hand computes.
        pool: contents whose KV the pool holds, and the block of each.
        arriving: contents on their way from a tier to a request that waits, each with its copy.
        reading: blocks of the pool with stores under way.
    """

    pins = True

    def __init__(self, state: EngineState, setup: TierSetup, group: int = 0, first: Placement | None = None) -> None:
        self._state, self.setup, self.group = state, setup, group
        self.transfers, self.block_size = setup.transfers, state.guarded.block_size
        if group:
            self.block_size = state.guarded.groups[group].block_tokens
        self._wide = self.block_size // state.guarded.block_size
        capacity = state.guarded.num_blocks + sum(num_blocks for num_blocks, _ in setup.tiers)
        requests = any(policy.needs_requests for _, policy in setup.tiers)
        self.contents: KnownContents = (
            KnownContents(self.block_size, 4 * capacity, with_requests=requests) if first is None else first.contents
        )
        tiers = [Tier(n, count, policy, self.contents) for n, (count, policy) in enumerate(setup.tiers, start=1)]
        self.lower = LowerTiers(tiers, setup.rule, self.contents, self, self._costs)
        self.rule = self.lower.rule
        self.names: dict[int, BlockHash] = {}
        self.pool: dict[BlockHash, int] = {}
        self._evicted: list[tuple[BlockId, BlockHash]] = []
        self.arriving: dict[BlockHash, Copy] = {}
        self.reading: dict[int, list[Copy]] = {}
        self._unsound: set[tuple[int, BlockHash]] = set()  # (tier, content) to lose once no copy pins it
        self.failed_loads, self.failed_stores = [0] * len(tiers), [0] * len(tiers)
        self.first_failure = ""
        for number, keys in enumerate(setup.found, start=1):
            self.adopt(number, list(keys)[-tiers[number - 1].num_blocks :])

    @property
    def now(self) -> PolicyTime:
        """The time of the step that began last."""
        return self._state.now

    def holds(self, key: BlockHash) -> bool:
        """Whether the pool or a tier has this content, or it is on its way."""
        return key in self.pool or self.lower.where(key) > 0 or key in self.arriving

    def table(self, request: RequestId, num_tokens: int = 0, *, start: int = 0) -> npt.NDArray[np.int32]:
        """The request's table in this group; entries before `start` may be anything."""
        table = self._state.guarded.table(request, self.group, num_tokens=num_tokens, start=start * self._wide)
        return table[:: self._wide]

    def names_of(self, path: SequenceOf[BlockHash]) -> SequenceOf[BlockHash]:
        """What this group's blocks are called, of a prompt whose units are."""
        return path[self._wide - 1 :: self._wide]

    def adopt(self, number: int, keys: SequenceOf[BlockHash]) -> None:
        """Hold what another process stored in a tier, as far as there is room."""
        tier = self.lower.tiers[number - 1]
        for key in keys:
            if key not in tier and len(tier) < tier.num_blocks:
                self.contents.found(key)
                tier.adopt(key, self.now)
                self._say("stored", key, number)

    # What the allocator says

    def heard(self, call: Call, events: SequenceOf[CacheEvent]) -> None:
        """Blocks were published or given up in this call."""
        for event in events:
            if event.group != self.group:
                continue
            pairs = [*zip(event.blocks, event.hashes, strict=True)]
            if event.kind == "admit":
                self.names.update(pairs)
                for block, key in pairs if call.name == "free" else ():  # where its next turn goes on, long computed
                    self.pool[key] = block
                    self.written(key)
                continue
            for block in event.blocks:
                self.names.pop(block, None)
            self._evicted.extend(pairs)

    def _say(self, event: str, key: BlockHash, tier: int) -> None:
        """Tell the observers what happened to a content of the first group below the pool."""
        if self._state.observers is not None and not self.group:
            medium = self.setup.media[tier - 1] if self.setup.media else ""
            above = self.contents.parent(key) if event == "stored" else None
            self._state.observers.moved(Move(event, key, tier, medium, above))

    def flush(self) -> None:
        """Offer what was evicted to the tier below. Before any of it is overwritten."""
        if not self._evicted:
            return
        evicted, self._evicted = self._evicted, []
        for block, key in evicted:
            if self.pool.get(key) == block:
                self.lower.evicted(key, self.now)
                if self._state.observers is not None and (tier := self.lower.where(key)) > 0:
                    self._say("kept", key, tier)
                del self.pool[key]
            for copy in self.reading.pop(block, ()):
                self.transfers.release(copy)

    # Moves, for LowerTiers

    def copy(self, key: BlockHash, source: int, target: int) -> None:
        block = 0 if source else self.pool[key]
        copy = Copy(key, source, target, block)
        if block:
            self.reading.setdefault(block, []).append(copy)
        self.transfers.submit((copy,))

    def remove(self, key: BlockHash, tier: int) -> None:
        self.transfers.remove(key, tier)
        self._say("removed", key, tier)

    # As blocks come to lie in the pool, and are used there

    def committed(self, seq: Sequence, before: int, after: int) -> None:
        """The KV of the tokens from `before` to `after` of `seq`, which has a table, is in the pool."""
        first, last = before // self.block_size, after // self.block_size
        if last <= first:
            return
        blocks = self.table(seq.id, start=max(0, first - 1))
        above = self.names.get(int(blocks[first - 1])) if first else None
        for depth, block in enumerate(blocks[first:last].tolist(), start=first):
            key = self.names.get(block)
            if key is None and self.group:  # not kept
                continue
            if key is None:  # not published: a collision, or a fork's that shares nothing
                break
            self.pool[key] = block
            if not self.group:
                self.contents.computed(key, depth, above)
            self.written(key)
            above = key

    def written(self, key: BlockHash) -> None:
        """The pool has got this content, which is worth storing."""
        if self.rule.exclusive:
            for tier in self.lower.tiers:
                if key in tier and not tier.is_pinned(key):
                    self.lower.drop(tier, [key], self.now)
        self.lower.ask(key, "written", self.now, pinned=False)

    def used(self, keys: SequenceOf[BlockHash]) -> None:
        """A request that is about to end used these contents."""
        for key in keys:
            if key in self.pool:
                self.lower.ask(key, "used", self.now, pinned=False)

    def _costs(
        self, tiers: SequenceOf[int], num_tokens: SequenceOf[int], cached: int
    ) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """See `movement.Costs`."""
        estimate, metrics = self.setup.recompute_s, self._state.metrics
        if estimate is None and metrics.num_scheduled_tokens and metrics.forward_s:
            each = metrics.forward_s / metrics.num_scheduled_tokens  # the pace of the steps so far
            estimate = lambda cached, tokens: each * (tokens - cached)  # noqa: E731
        recompute = None if estimate is None else tuple(estimate(cached, tokens) for tokens in num_tokens)
        return self.transfers.load_times(tiers), recompute

    def discard(self, blocks: Iterable[int]) -> None:
        """The KV of these blocks of the pool, 0 left out, is not sound: their contents leave the tiers.

        NOTE. What is being copied to or from a tier is pinned there until that has ended; its bytes are removed right
        behind the copy, for nobody may be there to see it end.
        """
        for key in [self.names[block] for block in blocks if block in self.names]:
            self.pool.pop(key, None)
            for tier in self.lower.tiers:
                if key not in tier:
                    continue
                if tier.is_pinned(key):
                    self._unsound.add((tier.number, key))
                    self.transfers.remove(key, tier.number)
                else:
                    tier.lose(key, self.now)
                    self.remove(key, tier.number)

    # As copies end

    def stored(self, copy: Copy) -> None:
        """A copy to a tier has ended, well or not."""
        reading = self.reading.get(copy.block)
        if reading is not None and copy in reading:
            reading.remove(copy)
            if not reading:
                del self.reading[copy.block]
        tier = self.lower.tiers[copy.target - 1]
        if copy.failed:
            self.failed_stores[copy.target - 1] += 1
        else:
            self._say("stored", copy.key, copy.target)
        self.end_at(tier, copy)
        if copy.source > copy.target and self.rule.exclusive and not copy.failed:
            lower = self.lower.tiers[copy.source - 1]  # it was lifted: one copy stays
            if copy.key in lower and not lower.is_pinned(copy.key):
                self.lower.drop(lower, [copy.key], self.now)

    def end_at(self, tier: Tier, copy: Copy) -> None:
        """Unpin what was copied to or from `tier`; where that failed, the content is lost there."""
        unsound = (tier.number, copy.key) in self._unsound
        lost = bool(copy.failed) and self.setup.holds_kv[tier.number - 1]
        if lost:
            self.first_failure = self.first_failure or copy.failed
        tier.unpin((copy.key,), self.now)
        if (lost or unsound) and not tier.is_pinned(copy.key):
            self._unsound.discard((tier.number, copy.key))
            tier.lose(copy.key, self.now)
            self.remove(copy.key, tier.number)

    def check(self, *, idle: bool) -> None:
        """Raise AssertionError where the blocks do not add up, or, with nothing under way, something is pinned."""
        self.lower.check()
        leaving = {*self._evicted}  # which the next flush offers to the tiers
        stale = [block for key, block in self.pool.items()
                 if self.names.get(block) != key and (block, key) not in leaving]  # fmt: skip
        assert not stale, f"blocks {stale} count as holding what they are not published with"
        if idle:
            assert not self.arriving, self.arriving
            assert not self.reading, self.reading
            for tier in self.lower.tiers:
                pinned = [key for key in tier.block_of if tier.is_pinned(key)]
                assert not pinned, f"tier {tier.number}: {len(pinned)} blocks are pinned for no copy"


_FEWEST = 1 << 16


@dataclass(slots=True)
class _Known:
    depth: int = 0
    num_tokens: int = 0
    parent: BlockHash | None = None
    tenant: int = 0
    last_use: int = 0
    uses: int = 0
    last_request: RequestFacts = UNKNOWN_REQUEST


class KnownContents:
    """Facts of contents, for the tiers' policies and the rule: those that are held somewhere, and those used lately.

    What an earlier process left is known by its key alone until a request names it: depth, tokens and uses are 0 then.

    Args:
        most: contents remembered beside those that are held.
        with_requests: whether a policy reads the last request of blocks.
    """

    def __init__(self, block_size: int, most: int, *, with_requests: bool = False) -> None:
        self._size, self._most = block_size, max(_FEWEST, most)
        self._known: dict[BlockHash, _Known] = {}
        self._tenants: dict[str, int] = {"": 0}
        self._requests = 0
        self._prompts = PromptEnds() if with_requests else None
        facts = ("depth", "num_tokens", "parent", "tenant", "last_use", "uses", "last_request")
        self.depth, self.num_tokens, self.parent, self.tenant, self.last_use, self.uses, self.last_request = (
            self._fact(name) for name in facts
        )

    def _fact(self, name: str) -> Callable[[BlockHash], Any]:
        value, known = attrgetter(name), self._known
        return lambda key: value(known[key])

    def used(self, request: RequestInfo, path: SequenceOf[BlockHash], num_tokens: int, num_cached: int) -> None:
        """A request uses these contents, all full blocks of its prompt of `num_tokens`, `num_cached` of them found."""
        self._requests += 1
        tenant = self._tenants.setdefault(request.tenant, len(self._tenants))
        facts = UNKNOWN_REQUEST
        if self._prompts is not None:
            turn = self._prompts.turn_of(path) if request.turn is None else request.turn
            facts = facts_of(request, num_tokens, max(0, -(-num_tokens // self._size) - num_cached), turn)
        parent: BlockHash | None = None
        for depth, key in enumerate(path):
            known = self._learn(key, depth, parent)
            known.uses += 1
            known.last_use, known.last_request = self._requests, facts
            if depth >= num_cached:
                known.tenant = tenant
            parent = key

    def computed(self, key: BlockHash, depth: int, parent: BlockHash | None) -> None:
        """A request generated this content: it is part of no prompt yet."""
        known = self._learn(key, depth, parent)
        known.uses = max(1, known.uses)
        known.last_use = self._requests

    def learn(self, path: SequenceOf[BlockHash]) -> None:
        """These are the leading blocks of a prompt: where each stands is known from here on."""
        parent: BlockHash | None = None
        for depth, key in enumerate(path):
            self._learn(key, depth, parent)
            parent = key

    def _learn(self, key: BlockHash, depth: int, parent: BlockHash | None) -> _Known:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
        known.depth, known.num_tokens, known.parent = depth, (depth + 1) * self._size, parent
        return known

    def prune(self, holds: Callable[[BlockHash], bool]) -> None:
        """Forget contents that are held nowhere, those longest unused first, when there are too many."""
        if len(self._known) <= 2 * self._most:
            return
        gone = sorted((known.last_use, key) for key, known in self._known.items() if not holds(key))
        for _, key in gone[: len(self._known) - self._most]:
            del self._known[key]

    def found(self, key: BlockHash) -> None:
        """An earlier process left this content."""
        self._known.setdefault(key, _Known())

    def name(self, key: BlockHash) -> BlockHash:
        return key

    def partial(self, key: BlockHash) -> bool:
        return False

    def next_use(self, key: BlockHash) -> float:
        return float("inf")
