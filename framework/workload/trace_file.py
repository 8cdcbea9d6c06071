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
from framework.workload.traces import Trace, open_trace


@dataclass(kw_only=True)
class TraceFile(Workload):
    """A recorded trace: `python -m framework trace describe FILE` says what is in it. For mode=replay.

    Args:
        path: plain, .gz or .zst.
        format: an installed trace format, or auto to let the readers tell.
        block_tokens: tokens a block id stands for; null: the format's own.
        limit: only the first so many requests; null for all.
        on_error: what a line that cannot be read does: raise, or skip (and count).
        speed: arrivals come so many times as fast.
        time_unit: of the file's times, s, ms or us, where files of its format differ; auto takes what fits.
        clock: of a recording that has both, steps of the engine (file), or seconds.
    """

    path: Path
    format: str = "auto"
    block_tokens: int | None = None
    limit: int | None = None
    on_error: Literal["raise", "skip"] = "raise"
    speed: float = 1.0
    time_unit: Literal["auto", "s", "ms", "us"] = "auto"
    clock: Literal["file", "seconds"] = "file"

    def __post_init__(self) -> None:
        self._trace: Trace | None = None
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
        """Whether arrivals count steps of the engine that was recorded, instead of seconds."""
        return self.open().in_steps

    def requests(self) -> Iterator[WorkloadRequest]:
        return self.limited(self.open())

    def limited(self, trace: Trace) -> Iterator[WorkloadRequest]:
        """The first `limit` requests of an open trace, at `speed`."""
        requests = islice(trace, self.limit)
        if self.speed == 1.0:
            return requests
        return (replace(request, arrival_s=request.arrival_s / self.speed) for request in requests)

    def facts(self) -> Mapping[str, Any]:
        """Lines that were left out, and the unit of times that was taken without being asked for."""
        facts: dict[str, Any] = {"num_skipped_lines": self._trace.num_skipped if self._trace is not None else 0}
        if self._trace is not None and self._trace.guessed_time_unit:
            facts["guessed_time_unit"] = self._trace.time_unit
        return facts
