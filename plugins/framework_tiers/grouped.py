"""Tiers below the pools of a model with several groups of KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.errors import InvalidArgument
from framework.groups.allocator import GroupedAllocator
from framework.interfaces.allocator import Hit
from framework.interfaces.groups import find_hit
from framework.types import RequestId
from framework_tiers.engine_tiers import EngineTiers, Load, Plan, Wanted
from framework_tiers.placement import TierSetup

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.request import Sequence
    from framework.engine.state import EngineState


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
        resumed = find_hit(others, lambda g, n: further[g].holds(path[n]), len(places) * size).tokens
        if resumed <= hit.num_tokens:
            return None
        found, end = hit.num_tokens // size, resumed // size
        wanted = [Wanted(first, min(num_full, end), path[num_full:end], places[num_full:end])]
        for at, group in zip(further, others, strict=True):
            needed = group.needs(resumed)
            keys = path[needed.start : needed.stop]
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
