"""A trace as a workload: its requests, from any file that an installed trace reader knows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from framework.errors import ConfigError, shown
from framework.interfaces.workload import Workload, WorkloadRequest
from framework_workloads.trace.reader import Trace, open_trace


@dataclass(kw_only=True)
class TraceFile(Workload):
    """A recorded trace: `python -m framework trace describe FILE` says what is in it. For mode=replay.

    Args:
        path: plain, .gz or .zst.
        format: an installed trace format, or auto to let the readers tell.
        block_tokens: tokens a block id stands for; null: the format's own.
        limit: only the first so many requests; null for all.
        on_error: what a line that cannot be read does: raise, or skip (and count).
        speed: the file's times come so many times as fast; what passes between an answer and the next turn does not.
        begin_s: where in the file to begin, seconds: sessions that go on there are under way. The last request of each
            before it is sent first, at 0, so that its context is in the cache; the others before it are left out.
        time_unit: of the file's times, s, ms or us, where files of its format differ; auto takes what fits.
        clock: of a recording that has both, steps of the engine (file), or seconds.
    """

    path: Path
    format: str = "auto"
    block_tokens: int | None = None
    limit: int | None = None
    on_error: Literal["raise", "skip"] = "raise"
    speed: float = 1.0
    begin_s: float = 0.0
    time_unit: Literal["auto", "s", "ms", "us"] = "auto"
    clock: Literal["file", "seconds"] = "file"

    def __post_init__(self) -> None:
        self._trace: Trace | None = None
        self._num_under_way = 0
        if not 0 <= self.begin_s < math.inf:
            raise ConfigError(f"workload.begin_s (trace) must be finite and at least 0, found {self.begin_s}")
        if not 0 < self.speed < math.inf:
            raise ConfigError(f"workload.speed (trace) must be above 0 and finite, found {self.speed}")
        for name, value, most in (("limit", self.limit, 2**63), ("block_tokens", self.block_tokens, 10**7)):
            if value is not None and not 1 <= value <= most:
                raise ConfigError(f"workload.{name} (trace) must be 1 to {most}, found {shown(value)}")

    def open(self, block_tokens: int | None = None) -> Trace:
        """The trace itself; `block_tokens` where the options give none.

        Raises:
            WorkloadError, InvalidArgument: see open_trace.
        """
        size = block_tokens if self.block_tokens is None else self.block_tokens
        self._trace = open_trace(
            self.path,
            format=self.format,
            block_tokens=size,
            on_error=self.on_error,
            time_unit=self.time_unit,
            in_seconds=self.clock == "seconds",
        )
        return self._trace

    def in_steps(self) -> bool:
        return self.open().in_steps

    def requests(self) -> Iterator[WorkloadRequest]:
        return self.limited(self.open())

    def limited(self, trace: Trace) -> Iterator[WorkloadRequest]:
        """The first `limit` requests of an open trace from `begin_s` on, at `speed`."""
        requests = islice(self._begun(trace) if self.begin_s else trace, self.limit)
        if self.speed == 1.0:
            return requests
        return (
            replace(one, arrival_s=one.arrival_s / self.speed, not_before_s=one.not_before_s / self.speed)
            for one in requests
        )

    def _begun(self, trace: Trace) -> Iterator[WorkloadRequest]:
        """Reads the trace twice: which sessions are under way is known at its end."""
        last: dict[str, WorkloadRequest] = {}
        going_on = set[str]()
        for request in trace:
            if request.session is not None and request.arrival_s < self.begin_s:
                last[request.session] = request
            elif request.session is not None:
                going_on.add(request.session)
        under_way = [one for session, one in last.items() if session in going_on]
        self._num_under_way = len(under_way)
        for one in sorted(under_way, key=lambda one: one.arrival_s):
            yield replace(one, arrival_s=0.0, after=(), delay_s=0.0, not_before_s=0.0)
        sent, before = {one.key for one in under_way}, set[str]()
        for request in trace:
            if request.arrival_s < self.begin_s:
                before.add(request.key)
                continue
            arrival_s, waits, not_before_s = request.arrival_s - self.begin_s, request.after, request.not_before_s
            not_before_s = max(0.0, not_before_s - self.begin_s)
            if not before.isdisjoint(waits):  # sent at 0, or never: it leaves when it left, or later
                waits = tuple(key for key in waits if key in sent or key not in before)
                not_before_s = max(not_before_s, arrival_s)
            yield replace(request, arrival_s=arrival_s, after=waits, not_before_s=not_before_s)

    def facts(self) -> Mapping[str, Any]:
        """Lines that were left out, the unit of times that was taken unasked, and how many sessions it began with."""
        facts: dict[str, Any] = {"num_skipped_lines": self._trace.num_skipped if self._trace is not None else 0}
        if self._trace is not None and self._trace.guessed_time_unit:
            facts["guessed_time_unit"] = self._trace.time_unit
        if self.begin_s:
            facts["sessions_under_way"] = self._num_under_way
        return facts
