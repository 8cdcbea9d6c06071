"""Checks of the victims that eviction policies name, and the host that every cache drives its policy with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from framework.errors import NoCandidate
from framework.guard.boundary import Guard
from framework.guard.facts import Facts, checked_facts
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId, PolicyTime


class GuardedPolicy(Guard):
    """An eviction policy that names candidates and keeps or declines blocks; else a PluginError names it.

    It is handed tuples, so it cannot change the allocator's lists.

    Attributes:
        wants_admit, wants_hit, wants_keep: whether the policy overrides it; one that it inherits does nothing.
        needs_requests: whether the policy reads the last request of blocks.
        in_bulk: whether the policy names many victims by a method of its own, and `victims` may be called.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__("eviction policy", policy)
        self._victim, self._evicted = policy.victim, policy.evicted
        self.wants_admit = getattr(policy.admit, "__func__", None) is not EvictionPolicy.admit
        self.wants_hit = getattr(policy.hit, "__func__", None) is not EvictionPolicy.hit
        self.wants_keep = getattr(policy.keep, "__func__", None) is not EvictionPolicy.keep
        self.needs_requests = bool(policy.needs_requests)
        self.in_bulk = names_in_bulk(policy)

    def attach(self, blocks: BlockView) -> None:
        self.plugin.attach(blocks)

    def parameters(self) -> dict[str, int | float | str]:
        answer: dict[str, int | float | str] = self.plugin.parameters()
        return answer

    def admit(self, blocks: Sequence[int], now: float) -> None:
        self.plugin.admit(tuple(blocks), now)

    def hit(self, blocks: Sequence[int], now: float) -> None:
        self.plugin.hit(tuple(blocks), now)

    def pin(self, blocks: Sequence[int], now: float) -> None:
        self.plugin.pin(tuple(blocks), now)

    def release(self, blocks: Sequence[int], now: float) -> None:
        self.plugin.release(tuple(blocks), now)

    def keep(self, block: int, now: float) -> bool:
        """The policy's answer, checked: a bool."""
        answer: Any = self.plugin.keep(BlockId(block), now)
        if type(answer) is not bool:
            self.wrong("keep", "must return a bool", answer)
        return bool(answer)

    def victim(self, now: float, candidates: bytearray) -> int:
        """The policy's choice, checked: a Python int that names a candidate."""
        try:
            block: Any = self._victim(now)
        except NoCandidate as error:
            raise self.fault("victim", f"raised NoCandidate while {sum(candidates)} candidates are left") from error
        if type(block) is not int:
            self.wrong("victim", "must return a block id (int)", block)
        if not 0 < block < len(candidates):
            raise self.fault("victim", f"must name a block 1 to {len(candidates) - 1}, named {block}")
        if not candidates[block]:
            raise self.fault("victim", f"must name a candidate, named block {block}, which is in use, free or evicted")
        return block

    def victims(self, count: int, now: float) -> list[Any]:
        """What the policy's own `victims` answers. Not checked: the caller does, as it takes them."""
        return list(self.plugin.victims(count, now))

    def evicted(self, block: int, now: float) -> None:
        self._evicted(BlockId(block), now)

    def facts(self) -> Facts:
        """What the policy reports of itself; nothing of one that was never attached."""
        return checked_facts(self, self.plugin.facts()) if hasattr(self.plugin, "blocks") else {}


class Tree(Protocol):
    """Which blocks lie below which, for a cache that gives up leaves only."""

    def leave(self, block: int) -> int:
        """This candidate counts as gone. The block above, if nobody uses it and it is a leaf from then on; else 0."""

    def stay(self, block: int) -> None:
        """Takes a `leave` back."""


class PolicyHost:
    """Drives the eviction policy of a cache: which blocks it may name, and the order of the calls for them.

    `admit`; `pin`, then `hit`; `kept`, then `release`; `victims` or `drop`. The cache writes the facts of the blocks
    before it calls. Lists are deepest block first; of an empty one there is no call.

    What a policy raises, and the PluginError of one that names no candidate, leave candidates half changed.

    Args:
        candidate: (rows,) 1 for blocks that the policy may name, which only the host writes. No block has number 0.
        tree: None where victims need not be leaves.

    Attributes:
        policy: the guarded policy, for what has no order: `facts`, `parameters`, the `wants_` flags.
        now: the policy's time; the cache sets it.
    """

    def __init__(self, policy: EvictionPolicy, candidate: bytearray, tree: Tree | None = None) -> None:
        self.policy, self.candidate, self.tree = GuardedPolicy(policy), candidate, tree
        self.now: PolicyTime = 0.0

    def admit(self, blocks: Sequence[int]) -> None:
        """These were published, and are in use."""
        if blocks and self.policy.wants_admit:
            self.policy.admit(blocks, self.now)

    def pin(self, blocks: Sequence[int]) -> None:
        """These candidates are in use from here on."""
        if blocks:
            candidate = self.candidate
            for block in blocks:
                candidate[block] = 0
            self.policy.pin(blocks, self.now)

    def hit(self, blocks: Sequence[int]) -> None:
        """A request found these, the candidates among them pinned already."""
        if blocks and self.policy.wants_hit:
            self.policy.hit(blocks, self.now)

    def kept(
        self, blocks: list[int], given_up: Callable[[int], Any], stays: Callable[[int], bool] | None = None
    ) -> list[int]:
        """Those of these blocks, which nobody uses any more, that the policy would keep.

        Args:
            given_up: called with each of the others, of which the policy knows that it is gone.
            stays: whether a block is kept without asking; None: none is.
        """
        if not self.policy.wants_keep:
            return blocks
        kept = []
        for block in blocks:
            if (stays is not None and stays(block)) or self.policy.keep(block, self.now):
                kept.append(block)
            else:
                self.policy.evicted(block, self.now)
                given_up(block)
        return kept

    def release(self, blocks: Sequence[int]) -> None:
        """Nobody uses these any more: they are candidates."""
        if blocks:
            candidate = self.candidate
            for block in blocks:
                candidate[block] = 1
            self.policy.release(blocks, self.now)

    def evict(self) -> int:
        """Give up the next candidate."""
        block = self.policy.victim(self.now, self.candidate)
        self.candidate[block] = 0
        self.policy.evicted(block, self.now)
        return block

    def victim(self) -> int:
        """The candidate to give up next; `drop` it."""
        return self.policy.victim(self.now, self.candidate)

    def drop(self, block: int) -> None:
        """The content of this block is gone."""
        self.candidate[block] = 0
        self.policy.evicted(block, self.now)

    def victims(self, count: int) -> list[int]:
        """`count` candidates that the policy has forgotten.

        With a `tree`, a victim's parent is offered as soon as it is a leaf.
        """
        tree = self.tree
        if count > 1 and tree is None and self.policy.in_bulk:
            return self._many_victims(count)
        victims: list[int] = []
        for _ in range(count):
            block = self.policy.victim(self.now, self.candidate)
            self.candidate[block] = 0
            victims.append(block)
            above = 0 if tree is None else tree.leave(block)
            self.policy.evicted(block, self.now)
            if above:
                self.release([above])
        if tree is not None:
            for block in victims:
                tree.stay(block)
        return victims

    def _many_victims(self, count: int) -> list[int]:
        named = self.policy.victims(count, self.now)
        candidate, taken = self.candidate, 0
        if {*map(type, named)} <= {int} and min(named, default=0) > 0:
            try:
                for block in named:
                    candidate[block] -= 1
                taken = len(named)
            except (IndexError, ValueError):  # no block, or 0 less 1: no candidate, or named before
                taken = -1
        if taken == len(named) == count:
            return named
        raise self.policy.fault("victims", f"must name {count} distinct candidates, named {named}")


def names_in_bulk(policy: EvictionPolicy) -> bool:
    """Whether `victims` is as specific as `victim` and `evicted`: a subclass may override one of those alone."""
    names = ("victims", "victim", "evicted")
    if any(name in getattr(policy, "__dict__", ()) for name in names):
        return False
    owner = next(kind for kind in type(policy).__mro__ if any(name in vars(kind) for name in names))
    return "victims" in vars(owner) and owner is not EvictionPolicy
