"""Error boundary around workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from framework.errors import ConfigError, FrameworkError, PluginError, WorkloadError
from framework.guard.boundary import Boundary, is_own
from framework.guard.facts import Facts, checked_facts, reported
from framework.interfaces.workload import Workload, WorkloadRequest


class GuardedWorkload:
    """A workload whose every failure names it: a WorkloadError or a ConfigError, or else a PluginError."""

    def __init__(self, workload: Workload) -> None:
        self._workload, cls = workload, type(workload)
        self._own = is_own(cls)
        contract = (FrameworkError,) if self._own else (WorkloadError, ConfigError, PluginError)
        self._boundary = Boundary("workload", cls, contract)

    def requests(self) -> Iterator[WorkloadRequest]:
        """Its requests, checked as they come."""
        for answer in self._boundary.iterate("requests", self._workload.requests):
            if not isinstance(answer, WorkloadRequest):
                self._boundary.wrong("requests", "must yield a WorkloadRequest", answer)
            yield answer

    def facts(self) -> Facts:
        return checked_facts(self._boundary, self._boundary.call("facts", self._workload.facts))

    def result(self) -> Mapping[str, Any]:
        """Its facts as a result holds them: the framework's own workloads name metrics, others' have a prefix."""
        return self._workload.facts() if self._own else reported({"workload": self})
