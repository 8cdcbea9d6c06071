"""Checks of what a scheduling plugin answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.guard.boundary import Guard, is_count, shown
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework.types import RequestInfo


class GuardedScheduling(Guard):
    """A scheduling plugin whose answers are checked: a request that is lost or named twice would never end.

    Attributes:
        max_passed, max_wait_s: its bounds.

    Raises:
        PluginError: a bound is no number.
    """

    plugin: Scheduling

    def __init__(self, plugin: Scheduling) -> None:
        super().__init__("scheduling", plugin)
        most, longest = plugin.max_passed, plugin.max_wait_s
        if most is not None and (not is_count(most) or most < 1):
            raise self.fault("max_passed", f"must be an integer of at least 1 or None, is {shown(most)}")
        if longest is not None and (isinstance(longest, bool) or not isinstance(longest, (int, float)) or longest < 0):
            raise self.fault("max_wait_s", f"must be seconds of at least 0 or None, is {shown(longest)}")
        self.max_passed, self.max_wait_s = most, longest

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest]:
        """Those that wait, next first.

        Raises:
            PluginError: one is lost, named twice, or none that waits.
        """
        chosen: Any = self.plugin.order(tuple(waiting), view)
        if chosen is None:
            return waiting
        if not isinstance(chosen, (list, tuple)) or not all(type(request) is WaitingRequest for request in chosen):
            self.wrong("order", "must return a list of the requests that wait, or None", chosen)
        if len(chosen) != len(waiting) or {id(request) for request in chosen} != {id(request) for request in waiting}:
            named = [request.number for request in chosen]
            lost = [request.number for request in waiting if request.number not in named]
            twice = sorted({number for number in named if named.count(number) > 1})
            what = f"leaves out {lost}" if lost else f"names {twice} more than once" if twice else "names others"
            raise self.fault("order", f"must name each of the {len(waiting)} requests that wait once, {what}")
        return chosen

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
