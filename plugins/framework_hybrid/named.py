"""Orders of eviction across groups over the columns of `GroupView`; they, rules and ways to share memory by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from framework.errors import ConfigError, NoCandidate
from framework.groups.checkpoints import CheckpointRule, Retention, Turns
from framework.groups.memory import Memory, Policies
from framework.groups.pool import GroupView
from framework.interfaces.eviction import Block, BlockView, EvictionPolicy, ScoredPolicy
from framework.interfaces.groups import KVGroup
from framework.registry.components import Component, build_component
from framework.types import BlockId, PolicyTime
from framework_hybrid.rules import AtMost, Dense, EveryFew, Junctions, Superseding
from framework_hybrid.shapes import Flops, flops_of, groups_of


class Coupled(ScoredPolicy):
    """Least recently used, but a block that had partners and lost the last of them goes before all others.

    Such a block is what users see as "the KV is resident and the hit is 0".
    """

    needs_groups: ClassVar[bool] = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        assert isinstance(blocks, GroupView)
        self._partners = blocks.partners
        self._had: set[BlockId] = set()

    def score(self, block: Block, now: PolicyTime) -> Any:
        if self._partners[block.id]:
            self._had.add(block.id)
            return (1, block.last_access)
        return (int(block.id not in self._had), block.last_access)

    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        super().evicted(block, now)
        self._had.discard(block)


class StateOrder(EvictionPolicy):
    """Which state goes is one method, `choose`; K and V belong to the next state below them.

    K and V without a state below, and parts of a state of which another part is gone, go before all states; where there
    is no state to give up (a pool of K and V alone), the least recently released go.

    Args:
        groups: of the model, some of them states.
    """

    needs_groups: ClassVar[bool] = True

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        self._is_state = [group.kind == "state" for group in groups]
        self._others_of_state = sum(group.kind in ("full", "state") for group in groups) - 1

    @abstractmethod
    def choose(self, states: Sequence[BlockId], view: GroupView) -> BlockId:
        """The one of these states to give up."""

    def above(self, state: BlockId) -> BlockId:
        """The view's column, remembered until a state above it comes or goes."""
        if state not in self._above:
            self._above[state] = block = BlockId(self.view.above[state])
            self._below.setdefault(block, set()).add(state)
        return self._above[state]

    def _moved(self, above: BlockId) -> None:
        for state in self._below.pop(above, ()):
            del self._above[state]

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        assert isinstance(blocks, GroupView)
        self.view = blocks
        self._states: set[BlockId] = set()
        self._others: dict[BlockId, None] = {}  # K and V, in the order of their release
        self._ends: dict[BlockId, None] = {}  # perhaps K and V at the end of a path without a state, or part of one
        self._above: dict[BlockId, BlockId] = {}
        self._below: dict[BlockId, set[BlockId]] = {}

    def admit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        for block in blocks:
            if self._is_state[self.view.group[block]]:
                self._moved(BlockId(self.view.above[block]))

    def pin(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._states.difference_update(blocks)
        for block in blocks:
            self._others.pop(block, None)

    def release(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        for block in blocks:
            if self._is_state[self.view.group[block]]:
                self._states.add(block)
            else:
                self._others[block] = None
            self._ends[block] = None

    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        self.pin((block,), now)
        self._moved(block)
        if self._above.get(block) is not None:
            self._below[self._above.pop(block)].discard(block)
        if parent := self.view.parent[block]:
            self._ends[BlockId(parent)] = None

    def victim(self, now: PolicyTime) -> BlockId:
        while self._ends:
            block, view = self._ends.popitem()[0], self.view
            if block in self._states and view.partners[block] < self._others_of_state:
                return block
            if block in self._others and not view.branches[block] and not view.partners[block]:
                return block
        if self._states:
            return self.choose(sorted(self._states), self.view)
        if not self._others:
            raise NoCandidate(f"{type(self).__name__} holds no candidate")
        return next(iter(self._others))


class Coverage(StateOrder):
    """On the path of the least recently used state, the one whose neighbours stand closest goes first: sglang#38000.

    Of equals the deepest. The path's last state and forks are spared while there is another.
    """

    def choose(self, states: Sequence[BlockId], view: GroupView) -> BlockId:
        oldest = min(states, key=lambda block: view.last_access[block])
        below = {self.above(block): block for block in sorted(states, key=lambda block: -view.last_access[block])}
        path = [oldest]
        while above := self.above(path[0]):
            path.insert(0, above)
        while path[-1] in below:
            path.append(below[path[-1]])
        inner = [(view.end[after] - view.end[before], view.last_access[block], block)
                 for before, block, after in zip([0, *path], path, path[1:], strict=False)
                 if block in states and view.branches[block] < 2]  # fmt: skip
        return min(inner)[2] if inner else oldest


class Marconi(StateOrder):
    """The state with the lowest alpha * norm(FLOPs saved / bytes) + norm(1 / age) goes first (arXiv:2411.19379).

    Among states with at most one prefix going on from them; both terms are min-max normalised over these. FLOPs are
    those that the state saves beyond the next state above it, bytes its own and those of K and V in between.

    Args:
        flops: of the model.
        alpha: weight of the first term. Marconi takes it once, of 0 to 2 in steps of 0.1, by replaying a window.
        as_coded: as its published code (0801661) has it: the FLOPs of MLPs have those of attention up to the state
            above subtracted, and a state is charged the K and V of its whole path. The code's third slip, freed bytes
            counted with the node before, says when its loop stops; here a pool asks for one block at a time.

    NOTE 1: age is counted in accesses of the pool, in Marconi in seconds: several states are left at one time.
    """

    def __init__(self, groups: Sequence[KVGroup], flops: Flops, *, alpha: float = 1.0, as_coded: bool = False) -> None:
        super().__init__(groups)
        self.flops, self.alpha, self.as_coded = flops, alpha, as_coded
        self._state_bytes = sum(group.block_bytes for group in groups if group.kind == "state")
        self._token_bytes = sum(group.block_bytes / group.block_tokens for group in groups if group.kind == "full")

    def efficiency(self, above: int, end: int) -> float:
        """FLOPs saved for a byte by a state at `end` tokens, below another at `above`."""
        charged = self._state_bytes + self._token_bytes * (end if self.as_coded else end - above)
        return self.flops.saved(above, end, as_coded=self.as_coded) / charged

    def choose(self, states: Sequence[BlockId], view: GroupView) -> BlockId:
        states = [block for block in states if view.branches[block] < 2] or states
        newest = 1 + max(view.last_access[block] for block in states)
        worth = _normalised([self.efficiency(view.end[self.above(block)], view.end[block]) for block in states])
        recent = _normalised([1 / (newest - view.last_access[block]) for block in states])
        return min(zip(states, worth, recent, strict=True), key=lambda each: self.alpha * each[1] + each[2])[0]


def _normalised(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / ((high - low) or 1) for value in values]


class Quota(EvictionPolicy):
    """Each group has a share of the bytes; the group that exceeds its share most gives up a block of its own order.

    Args:
        shares: (G,) of the resident bytes, above 0.
        inner: makes the order within a group.
    """

    def __init__(self, shares: Sequence[float], inner: Callable[[], EvictionPolicy]) -> None:
        self._shares, self._orders = tuple(shares), [inner() for _ in shares]

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        assert isinstance(blocks, GroupView)
        self._group, self._num_bytes = blocks.group, blocks.num_bytes
        self._candidates, self._held = [0] * len(self._shares), [0] * len(self._shares)
        for order in self._orders:
            order.attach(blocks)

    def admit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        for block in blocks:
            self._held[self._group[block]] += self._num_bytes[block]
        self._each(blocks, now, "admit", 0)

    def hit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._each(blocks, now, "hit", 0)

    def pin(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._each(blocks, now, "pin", -1)

    def release(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._each(blocks, now, "release", +1)

    def victim(self, now: PolicyTime) -> BlockId:
        able = [g for g, count in enumerate(self._candidates) if count]
        if not able:
            raise NoCandidate("Quota holds no candidate")
        return self._orders[max(able, key=lambda g: self._held[g] / self._shares[g])].victim(now)

    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        group = self._group[block]
        self._held[group] -= self._num_bytes[block]
        self._candidates[group] -= 1
        self._orders[group].evicted(block, now)

    def _each(self, blocks: Sequence[BlockId], now: PolicyTime, hook: str, by: int) -> None:
        for g, order in enumerate(self._orders):
            group_blocks = [block for block in blocks if self._group[block] == g]
            if group_blocks:
                self._candidates[g] += by * len(group_blocks)
                getattr(order, hook)(group_blocks, now)


ORDERS = ("coupled", "coverage", "marconi", "marconi_as_coded", "quota")
"""Orders across groups. Pools of a group have quotas as they are, and pages that are split go whole."""
OF_STATES = ("coverage", "marconi", "marconi_as_coded")
# SGLang's defaults: tokens of windows to those of full attention, bytes of states to those of attention.
WINDOW_TOKENS, STATE_BYTES = 0.8, 0.9


def rule_of(name: str, interval: int = 0, count: int = 8) -> CheckpointRule:
    """A rule for checkpoints: dense, retention, turns, junctions, every, at_most or superseding.

    Args:
        interval: tokens between two places, of retention (0: none), every and at_most.
        count: of at_most, states a path.

    Raises:
        ConfigError: an unknown name, or no interval where the rule is about one.
    """
    rules: Mapping[str, Callable[[], CheckpointRule]] = {
        "dense": Dense, "retention": lambda: Retention(interval), "turns": lambda: Turns(interval),
        "junctions": Junctions, "superseding": Superseding, "every": lambda: EveryFew(interval),
        "at_most": lambda: AtMost(count, interval),
    }  # fmt: skip
    if name not in rules or (name in ("every", "at_most") and interval < 1):
        raise ConfigError(f"a rule for checkpoints is one of {', '.join(rules)}, every and at_most with an interval of "
                          f"at least 1 token, found {name!r} with {interval}")  # fmt: skip
    return rules[name]()


def memory_of(
    config: Mapping[str, Any] | str, memory: Component, order: str | None, inner: Policies, *, num_bytes: int,
    unit: int, parents: Sequence[int] | None = None, alpha: float = 1.0,
    block_tokens: Mapping[str, int] | None = None,
) -> Memory:  # fmt: skip
    """Memory of a model's groups under one way to share it and one order of eviction.

    Args:
        config: see `groups_of`. memory: an installed one, with its options, or one that is not opened yet.
        order: one of ORDERS; None: that of `inner`.
        inner: makes the policy that leads alone, or within a group, or the pools that the order does not lead.
        num_bytes: of all groups. unit: tokens a block; one pool takes the smallest multiple that holds a state.
        alpha: of Marconi's score. block_tokens: of groups after the first, by kind, where those are not their unit.

    Raises:
        ConfigError: an unknown model, or an order that cannot lead this memory or these groups.
    """
    made: Memory = build_component("memory", memory, {})
    groups = groups_of(config, block_tokens=unit, layout="one_page" if made.equal_pages else "by_kind")
    sizes = block_tokens or {}
    groups = (groups[0], *(group.sized(sizes.get(group.kind, group.block_tokens)) for group in groups[1:]))
    kinds = {group.kind for group in groups}
    why = ""
    if order is not None and made.splits_pages:
        why = f"{type(made).__name__} gives up whole pages"
    elif order == "quota" and not made.equal_pages:
        why = f"pools of {type(made).__name__} have quotas as they are"
    elif order in OF_STATES and "state" not in kinds:
        why = f"it chooses among recurrent states, and the model has groups {', '.join(group.name for group in groups)}"
    if why:
        raise ConfigError(f"order={order} cannot lead here: {why}")
    if made.splits_pages:
        groups = tuple(padded(groups))
    shares = shares_of(groups)
    across: Mapping[str | None, Policies] = {
        None: inner, "coupled": lambda _: Coupled(), "quota": lambda blocks: Quota(shares, lambda: inner(blocks)),
        "coverage": lambda _: Coverage(groups), "marconi": lambda _: Marconi(groups, flops_of(config), alpha=alpha),
        "marconi_as_coded": lambda _: Marconi(groups, flops_of(config), alpha=alpha, as_coded=True),
    }  # fmt: skip
    if made.equal_pages:
        made.merge |= order in OF_STATES  # they are orders of one tree, which has nothing twice
        policies = across[order]
    else:
        leads = [order == "coupled" or group.kind == "state" for group in groups]
        makes = iter([across[order] if led else inner for led in leads])
        policies = inner if made.splits_pages else lambda blocks: next(makes)(blocks)
    counts = blocks_of(groups, num_bytes, shares)
    return made.open(groups, policies, num_bytes=num_bytes, num_blocks=counts, unit=unit, parents=parents)


def blocks_of(groups: Sequence[KVGroup], num_bytes: int, shares: Sequence[float]) -> list[int]:
    """By group, the blocks that its share of so many bytes holds."""
    return [int(num_bytes * share) // group.block_bytes for group, share in zip(groups, shares, strict=True)]


def shares_of(groups: Sequence[KVGroup]) -> list[float]:
    """SGLang's split of memory among the groups; those of one kind alike."""
    page = max((group.block_bytes for group in groups if group.kind == "full"), default=1)
    parts = [WINDOW_TOKENS * group.block_bytes / page if group.length else float(group.kind == "full")
             for group in groups]  # fmt: skip
    states = STATE_BYTES * sum(parts) / max(1, parts.count(0.0))
    parts = [part or states or 1.0 for part in parts]  # of states alone, alike
    return [part / sum(parts) for part in parts]


def padded(groups: Sequence[KVGroup]) -> list[KVGroup]:
    """The groups with blocks padded by a few percent, so that the largest is a multiple of the smaller."""
    largest = max(group.block_bytes for group in groups)
    counts = [largest // group.block_bytes for group in groups]
    page = max(-(-largest // count) * count for count in counts)
    return [replace(group, block_bytes=page // count) for group, count in zip(groups, counts, strict=True)]
