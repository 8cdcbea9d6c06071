"""Error boundary around eviction policies, and the host that every cache drives its policy with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import length_hint
from typing import Any, Protocol

from framework.errors import NoCandidate, PluginError
from framework.guard.boundary import Boundary, contained
from framework.guard.facts import Facts, checked_facts
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId, PolicyTime


class GuardedPolicy:
    """An eviction policy whose every failure is a PluginError naming distribution, class, method and rule.

    It is handed tuples, so it cannot change the allocator's lists.

    Attributes:
        wants_admit, wants_hit, wants_keep: whether the policy overrides it; one that it inherits does nothing.
        needs_requests: whether the policy reads the last request of blocks.
        plugin: the policy itself.
        in_bulk: whether the policy names many victims by a method of its own, and `victims` may be called.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.plugin = policy
        self._boundary = Boundary("eviction policy", type(policy))
        self.name = type(policy).__name__
        self._victim = policy.victim
        self._evicted = policy.evicted
        self.wants_admit = getattr(policy.admit, "__func__", None) is not EvictionPolicy.admit
        self.wants_hit = getattr(policy.hit, "__func__", None) is not EvictionPolicy.hit
        self.wants_keep = getattr(policy.keep, "__func__", None) is not EvictionPolicy.keep
        self.needs_requests = bool(policy.needs_requests)
        self.in_bulk = names_in_bulk(policy)
        self.fault = self._boundary.fault

    attach, parameters = contained(EvictionPolicy.attach), contained(EvictionPolicy.parameters)

    def _call(self, callback: Callable[..., Any], hook: str, blocks: Sequence[int], now: float) -> None:
        try:
            callback(blocks if type(blocks) is tuple else tuple(blocks), now)
        except BaseException as error:
            self._boundary.contain(hook, error, f" for {len(blocks)} blocks")

    def admit(self, blocks: Sequence[int], now: float) -> None:
        self._call(self.plugin.admit, "admit", blocks, now)

    def hit(self, blocks: Sequence[int], now: float) -> None:
        self._call(self.plugin.hit, "hit", blocks, now)

    def pin(self, blocks: Sequence[int], now: float) -> None:
        self._call(self.plugin.pin, "pin", blocks, now)

    def release(self, blocks: Sequence[int], now: float) -> None:
        self._call(self.plugin.release, "release", blocks, now)

    def keep(self, block: int, now: float) -> bool:
        """The policy's answer, checked: a bool."""
        try:
            answer: Any = self.plugin.keep(BlockId(block), now)
        except BaseException as error:
            self._boundary.contain("keep", error, f" for block {block}")
        if type(answer) is not bool:
            self._boundary.wrong("keep", "must return a bool", answer)
        return bool(answer)

    def victim(self, now: float, candidates: bytearray) -> int:
        """The policy's choice, checked: a Python int that names a candidate."""
        try:
            block: Any = self._victim(now)
        except NoCandidate as error:
            raise self.fault("victim", f"raised NoCandidate while {sum(candidates)} candidates are left") from error
        except BaseException as error:
            self._boundary.contain("victim", error)
        if type(block) is not int:
            self._boundary.wrong("victim", "must return a block id (int)", block)
        if not 0 < block < len(candidates):
            raise self.fault("victim", f"must name a block 1 to {len(candidates) - 1}, named {block}")
        if not candidates[block]:
            with suppress(PluginError):  # or it would name this block for ever
                self.evicted(block, now)
            raise self.fault("victim", f"must name a candidate, named block {block}, which is in use, free or evicted")
        return block

    def victims(self, count: int, now: float) -> list[Any]:
        """What the policy's own `victims` answers. Not checked: the caller does, as it takes them."""
        try:
            return list(self.plugin.victims(count, now))
        except BaseException as error:
            self._boundary.contain("victims", error, f" when asked for {count}")

    def evicted(self, block: int, now: float) -> None:
        try:
            self._evicted(BlockId(block), now)
        except BaseException as error:
            self._boundary.contain("evicted", error, f" for block {block}")

    def facts(self) -> Facts:
        """What the policy reports of itself; nothing of one that was never attached."""
        if not hasattr(self.plugin, "blocks"):
            return {}
        return checked_facts(self._boundary, self._boundary.call("facts", self.plugin.facts))


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

    Every method raises PluginError where the policy fails. Candidates are then as before, except those of a failed
    `pin`, of which nobody knows whether the policy still has them: `unpin` gives them back to it.

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

    def unpin(self, blocks: Sequence[int]) -> None:
        """What these were pinned for is called off, by an error that is to be reported rather than another one."""
        if blocks:
            with suppress(PluginError):
                self.release(blocks)
            self._mark(blocks)

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
            self._mark(blocks)
            try:
                self.policy.release(blocks, self.now)
            except PluginError:
                for block in blocks:
                    self.candidate[block] = 0
                raise

    def _mark(self, blocks: Sequence[int]) -> None:
        candidate = self.candidate
        for block in blocks:
            candidate[block] = 1

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
        """`count` candidates that the policy has forgotten; the cache may still `restore` them.

        With a `tree`, a victim's parent is offered as soon as it is a leaf.
        """
        if count > 1 and self.tree is None and self.policy.in_bulk:
            return self._many_victims(count)
        victims: list[int] = []
        late: list[int] = []
        try:
            for _ in range(count):
                block = self.policy.victim(self.now, self.candidate)
                self.candidate[block] = 0
                victims.append(block)
                above = 0 if self.tree is None else self.tree.leave(block)
                self.policy.evicted(block, self.now)
                if above:
                    late.append(above)
                    self.release([above])
        except PluginError:
            self._stay(victims)
            self.restore(victims, late)
            raise
        self._stay(victims)
        return victims

    def _stay(self, victims: Sequence[int]) -> None:
        if self.tree is not None:
            for block in victims:
                self.tree.stay(block)

    def _many_victims(self, count: int) -> list[int]:
        named = self.policy.victims(count, self.now)
        candidate, taken = self.candidate, 0
        if {*map(type, named)} <= {int} and min(named, default=0) > 0:
            rest = iter(named)
            try:
                for block in rest:
                    candidate[block] -= 1
                taken = len(named)
            except (IndexError, ValueError):  # no block, or 0 less 1: no candidate, or named before
                taken = len(named) - 1 - length_hint(rest)
        if taken == len(named) == count:
            return named
        self.restore(named[:taken])
        raise self.policy.fault("victims", f"must name {count} distinct candidates, named {named}")

    def restore(self, victims: Sequence[int], late: Sequence[int] = ()) -> None:
        """The policy keeps these victims after all, and is not offered the `late` ones that they made leaves.

        Called for an error that is to be reported rather than another one.
        """
        chosen, withheld = set(victims), set(late)
        for block in reversed(victims):
            with suppress(PluginError):
                self.policy.admit([block], self.now)
                if block not in withheld:
                    self.policy.release([block], self.now)
            self.candidate[block] = 1
        for block in late:
            self.candidate[block] = 0
            if block not in chosen:
                with suppress(PluginError):
                    self.policy.pin([block], self.now)


def names_in_bulk(policy: EvictionPolicy) -> bool:
    """Whether `victims` is as specific as `victim` and `evicted`: a subclass may override one of those alone."""
    names = ("victims", "victim", "evicted")
    if any(name in getattr(policy, "__dict__", ()) for name in names):
        return False
    owner = next(kind for kind in type(policy).__mro__ if any(name in vars(kind) for name in names))
    return "victims" in vars(owner) and owner is not EvictionPolicy
