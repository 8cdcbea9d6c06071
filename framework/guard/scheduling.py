"""A scheduling plugin with its answers checked and its bound kept, and what is cached of the requests that wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from framework.errors import InvalidArgument
from framework.guard.boundary import Guard, is_count, text_of
from framework.guard.facts import checked_facts
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework.types import BlockHash, RequestInfo

Found = tuple[int, Sequence[BlockHash]]
"""(cached leading tokens, chained hashes of the full blocks) of a prompt."""


class GuardedScheduling(Guard):
    """A scheduling plugin whose answers are checked: a request that is lost or named twice would never end.

    Attributes:
        max_passed, max_wait_s: its bounds.
        num_overdue: requests that were passed over too often or waited too long, and were admitted before their place
            in the plugin's order for it.

    Raises:
        InvalidArgument: a bound is no number.
    """

    plugin: Scheduling

    def __init__(self, plugin: Scheduling) -> None:
        super().__init__("scheduling", plugin)
        most, longest = plugin.max_passed, plugin.max_wait_s
        if most is not None and (not is_count(most) or most < 1):
            raise self._refused("max_passed", f"must be an integer of at least 1 or None, is {text_of(most)}")
        if longest is not None and (
            isinstance(longest, bool) or not isinstance(longest, (int, float)) or not longest >= 0
        ):
            raise self._refused("max_wait_s", f"must be seconds of at least 0 or None, is {text_of(longest)}")
        self.max_passed, self.max_wait_s = most, longest
        self._overdue: set[WaitingRequest] = set()
        self.num_overdue = 0

    def _refused(self, bound: str, rule: str) -> InvalidArgument:
        return InvalidArgument(str(self.fault(bound, rule)))  # an option's fault more often than the plugin's

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest]:
        """Those that wait, next first: those whose bound is reached, oldest first, then as the plugin says.

        `waiting` itself, in order of arrival, where it says nothing and no bound is reached.

        Raises:
            PluginError: one is lost, named twice, or none that waits.
        """
        late = [request for request in waiting if self._is_late(request, view)]
        chosen, self._overdue = self._chosen(waiting, view), set()
        if not late:
            return chosen
        places = {request: place for place, request in enumerate(chosen)}
        self._overdue = {request for place, request in enumerate(late) if place < places[request]}
        first = set(late)
        return [*late, *(request for request in chosen if request not in first)]

    def _is_late(self, request: WaitingRequest, view: QueueView) -> bool:
        most, longest = self.max_passed, self.max_wait_s
        return (most is not None and request.passed >= most) or (
            longest is not None and view.now_s - request.arrival_s >= longest
        )

    def _chosen(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest]:
        chosen: Any = self.plugin.order(tuple(waiting), view) if waiting else None
        if chosen is None:
            return waiting
        if not isinstance(chosen, (list, tuple)) or not all(type(request) is WaitingRequest for request in chosen):
            self.wrong("order", "must return a list of the requests that wait, or None", chosen)
        if len(chosen) != len(waiting) or {id(request) for request in chosen} != {id(request) for request in waiting}:
            numbers = [request.number for request in chosen]
            lost = [request.number for request in waiting if request.number not in numbers]
            twice = sorted({number for number in numbers if numbers.count(number) > 1})
            what = f"leaves out {lost}" if lost else f"names {twice} more than once" if twice else "names others"
            raise self.fault("order", f"must name each of the {len(waiting)} requests that wait once, {what}")
        named: Sequence[WaitingRequest] = chosen
        return named

    def admitted(self, request: WaitingRequest, others: Iterable[WaitingRequest], view: QueueView) -> None:
        """`request` waits no more; `others` do."""
        self.num_overdue += request in self._overdue
        for other in others:
            other.passed += other.number < request.number
        self.plugin.admitted(request, view)

    def reads_hit(self, number: int, *, waits: bool) -> None:
        """What is cached of a request is about to be read, by its number.

        Raises:
            PluginError: the plugin has said that it would not, or the request waits no more.
        """
        if not self.plugin.needs_hits:
            raise self.fault("order", "reads what is cached, and its needs_hits is False")
        if not waits:
            raise self.fault("order", f"reads what is cached of request {number}, which waits no more")

    @property
    def bound(self) -> str:
        """How long a request may wait while others are admitted."""
        bounds = [f"passed over {self.max_passed} times"] if self.max_passed is not None else []
        bounds += [f"waited {self.max_wait_s:g} s"] if self.max_wait_s is not None else []
        return " or ".join(bounds) or "none: a request may starve"

    def facts(self) -> dict[str, Any]:
        """For a run's result: the bound, how often it was reached, and what the plugin itself says."""
        return {**checked_facts(self, self.plugin.facts()), "bound": self.bound, "overdue": self.num_overdue}

    def victim(self, running: Sequence[RunningRequest], view: QueueView) -> RunningRequest | None:
        """Which of `running` to preempt; None: the last.

        Raises:
            PluginError: it is none of them.
        """
        chosen: Any = self.plugin.victim(tuple(running), view)
        if chosen is not None and not any(chosen is one for one in running):
            self.wrong("victim", f"must return one of the {len(running)} requests it was given, or None", chosen)
        found: RunningRequest | None = chosen
        return found

    def share(self, request: RequestInfo, num_tokens: int, budget: int) -> int:
        """How many of the tokens that a prompt lacks this step computes.

        Raises:
            PluginError: below 1 or above the budget.
        """
        count: Any = self.plugin.share(request, num_tokens, budget)
        if not is_count(count) or not 1 <= count <= budget:
            self.wrong("share", f"must return 1 to {budget} tokens", count)
        return int(count)


class WaitingHits:
    """How much of each waiting prompt is cached: looked up once, then again only where the cache changed under it.

    A hit of whole blocks changes when one of them is evicted, or when the block after them is published.

    Args:
        block_size: tokens a block; None where hits are not of whole blocks: then each is looked up whenever it is
            asked for.
    """

    def __init__(self, block_size: int | None) -> None:
        self._block_size = block_size
        self._found: dict[Hashable, Found] = {}
        self._watching: dict[BlockHash, set[Hashable]] = {}
        self._watched: dict[Hashable, Sequence[BlockHash]] = {}

    def of(self, who: Hashable, find: Callable[[], Found]) -> Found:
        """What is cached of the prompt of `who` now, as `find` finds it."""
        found = self._found.get(who)
        if found is None:
            found = find()
            if self._block_size is not None:
                self._found[who] = found
                before, watched = self._watched.get(who, ()), found[1][: found[0] // self._block_size + 1]
                for key in watched[len(before) :]:
                    self._watching.setdefault(key, set()).add(who)
                self._watched[who] = max(before, watched, key=len)
        return found

    def changed(self, keys: Iterable[BlockHash]) -> None:
        """The contents of these names were published or evicted."""
        for key in keys:
            for who in self._watching.get(key, ()):
                self._found.pop(who, None)

    def forget(self, who: Hashable) -> None:
        """`who` waits no more."""
        for key in self._watched.pop(who, ()):
            watching = self._watching[key]
            watching.discard(who)
            if not watching:
                del self._watching[key]
        self._found.pop(who, None)
