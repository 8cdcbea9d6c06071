"""Observers for tests that choose them by name, `observing:CLASS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Observer, RunView
from framework.results import Metric


class Counts(Observer):
    """Counts the calls of each request; `fail` names a method that raises."""

    files = ("calls.jsonl",)
    metrics = (
        Metric(key="calls", unit="calls", better="", section="mine", title="calls", definition="Calls heard."),
    )  # fmt: skip

    def __init__(self, *, fail: str = "") -> None:
        self.fail, self.calls, self.rows, self.closed = fail, 0, 0, 0
        self.write: Any = None

    def start(self, run: RunView) -> None:
        self.write = run.write
        self._may_fail("start")

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        self.calls += 1
        self._may_fail("heard")

    def row(self, request: int) -> Mapping[str, Any]:
        self.rows += 1
        return {"mine": request}

    def results(self) -> Mapping[str, Any]:
        self._may_fail("results")
        self.write("calls.jsonl", {"calls": self.calls})
        return {"calls": self.calls}

    def _may_fail(self, method: str) -> None:
        if method == self.fail:
            raise ValueError("by design")
