"""Checks of what workloads make and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from framework.guard.boundary import Guard, is_own
from framework.guard.facts import Facts, checked_facts, reported
from framework.interfaces.workload import Answer, Recording, Workload, WorkloadRequest


class GuardedWorkload(Guard):
    """A workload that makes requests and reports facts; else a PluginError names it."""

    def __init__(self, workload: Workload) -> None:
        super().__init__("workload", workload)

    def requests(self) -> Iterator[WorkloadRequest]:
        """Its requests, checked as they come."""
        for answer in self.plugin.requests():
            if not isinstance(answer, WorkloadRequest):
                self.wrong("requests", "must yield a WorkloadRequest", answer)
            yield answer

    def in_steps(self) -> bool:
        answer: Any = self.plugin.in_steps()
        if type(answer) is not bool:
            self.wrong("in_steps", "must return a bool", answer)
        return bool(answer)

    def recording(self) -> Recording | None:
        answer: Any = self.plugin.recording()
        if answer is not None and not isinstance(answer, Recording):
            self.wrong("recording", "must return a Recording or None", answer)
        found: Recording | None = answer
        return found

    def facts(self) -> Facts:
        return checked_facts(self, self.plugin.facts())

    def result(self) -> Mapping[str, Any]:
        """Its facts as a result holds them: the framework's own workloads name metrics, others' have a prefix."""
        facts: Mapping[str, Any] = self.plugin.facts() if is_own(type(self.plugin)) else reported({"workload": self})
        return facts

    def judged(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """What it says of the answers, as a result holds it: `workload_accuracy`."""
        facts = checked_facts(self, self.plugin.judge(answers), "judge")
        return {f"workload_{name}": value for name, value in facts.items()}
