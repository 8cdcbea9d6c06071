"""Error boundary around eviction policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from framework.errors import NoCandidate, PluginError
from framework.guard.boundary import OUTSIDE, Boundary
from framework.guard.facts import Facts, checked_facts
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId


class GuardedPolicy:
    """An eviction policy whose every failure is a PluginError naming distribution, class, method and rule.

    It is handed tuples, so it cannot change the allocator's lists.

    Attributes:
        wants_admit, wants_hit, wants_keep: whether the policy overrides it; one that it inherits does nothing.
        needs_requests: whether the policy reads the last request of blocks.
        in_bulk: whether the policy names many victims by a method of its own, and `victims` may be called.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._boundary = boundary_of(policy)
        self.name = type(policy).__name__
        self._victim = policy.victim
        self._evicted = policy.evicted
        self.wants_admit = getattr(policy.admit, "__func__", None) is not EvictionPolicy.admit
        self.wants_hit = getattr(policy.hit, "__func__", None) is not EvictionPolicy.hit
        self.wants_keep = overrides_keep(policy)
        self.needs_requests = bool(policy.needs_requests)
        self.in_bulk = names_in_bulk(policy)
        self.fault = self._boundary.fault

    def attach(self, blocks: BlockView) -> None:
        try:
            self._policy.attach(blocks)
        except BaseException as error:
            self._boundary.contain("attach", error)

    def _call(self, callback: Callable[..., Any], hook: str, blocks: Sequence[int], now: float) -> None:
        try:
            callback(blocks if type(blocks) is tuple else tuple(blocks), now)
        except BaseException as error:
            self._boundary.contain(hook, error, f" for {len(blocks)} blocks")

    def admit(self, blocks: Sequence[int], now: float) -> None:
        self._call(self._policy.admit, "admit", blocks, now)

    def hit(self, blocks: Sequence[int], now: float) -> None:
        self._call(self._policy.hit, "hit", blocks, now)

    def pin(self, blocks: Sequence[int], now: float) -> None:
        self._call(self._policy.pin, "pin", blocks, now)

    def release(self, blocks: Sequence[int], now: float) -> None:
        self._call(self._policy.release, "release", blocks, now)

    def keep(self, block: int, now: float) -> bool:
        """The policy's answer, checked: a bool."""
        try:
            answer: Any = self._policy.keep(BlockId(block), now)
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
            return list(self._policy.victims(count, now))
        except BaseException as error:
            self._boundary.contain("victims", error, f" when asked for {count}")

    def evicted(self, block: int, now: float) -> None:
        try:
            self._evicted(BlockId(block), now)
        except BaseException as error:
            self._boundary.contain("evicted", error, f" for block {block}")

    def parameters(self) -> dict[str, float]:
        found: dict[str, float] = self._boundary.call("parameters", self._policy.parameters)
        return found

    def facts(self) -> Facts:
        """What the policy reports of itself; nothing of one that was never attached."""
        if not hasattr(self._policy, "blocks"):
            return {}
        return checked_facts(self._boundary, self._boundary.call("facts", self._policy.facts))


def boundary_of(policy: EvictionPolicy) -> Boundary:
    """Names the failures of this policy."""
    return Boundary("eviction policy", type(policy))


def overrides_keep(policy: EvictionPolicy) -> bool:
    """Whether the policy may decline content."""
    return getattr(policy.keep, "__func__", None) is not EvictionPolicy.keep


def names_in_bulk(policy: EvictionPolicy) -> bool:
    """Whether `victims` is as specific as `victim` and `evicted`: a subclass may override one of those alone."""
    names = ("victims", "victim", "evicted")
    if any(name in getattr(policy, "__dict__", ()) for name in names):
        return False
    owner = next(kind for kind in type(policy).__mro__ if any(name in vars(kind) for name in names))
    return "victims" in vars(owner) and owner is not EvictionPolicy


@contextmanager
def around_policy(policy: EvictionPolicy) -> Iterator[None]:
    """Contains what `policy` raises in a loop that calls it directly, once a block: a failure ends the loop.

    The hook is read from the traceback, so that a call costs nothing.

    Raises:
        PluginError: a method of `policy` raised; errors of the loop's own pass.
    """
    try:
        yield
    except OUTSIDE:
        raise
    except BaseException as error:
        hook = _hook_in(error.__traceback__, policy)
        if hook is None:
            raise
        boundary_of(policy).contain(hook, error)


def _hook_in(trace: TracebackType | None, policy: EvictionPolicy) -> str | None:
    """The method by which the stack of a failure enters `policy`; None when it never does."""
    while trace is not None:
        code = trace.tb_frame.f_code
        first = trace.tb_frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if first is policy and hasattr(policy, code.co_name):
            return code.co_name
        trace = trace.tb_next
    return None
