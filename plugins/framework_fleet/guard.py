"""Checks of what routers answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.guard.boundary import Guard
from framework.guard.facts import Facts, checked_facts
from framework_fleet.router import ReplicaView, RoutedRequest, Router


class GuardedRouter(Guard):
    """A router that names one of the replicas that it was given; else a PluginError names it."""

    plugin: Router

    def __init__(self, router: Router) -> None:
        super().__init__("router", router)

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """See Router.

        Raises:
            PluginError: another answer.
        """
        chosen: Any = self.plugin.route(request, tuple(replicas))
        if not any(chosen is one for one in replicas):
            self.wrong("route", f"must return one of the {len(replicas)} replicas it was given", chosen)
        view: ReplicaView = chosen
        return view

    def facts(self) -> Facts:
        """What it measured, checked."""
        return checked_facts(self, self.plugin.facts())
