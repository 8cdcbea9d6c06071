"""Where requests come from: workloads by name, seeded ones, files of prompts, traces and recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from framework import registry
from framework.errors import WorkloadError
from framework.guard.workload import GuardedWorkload
from framework.interfaces.workload import Message, Workload, WorkloadRequest

__all__ = ["Message", "Workload", "WorkloadRequest", "build", "make", "requests_of", "stream"]


def make(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> Workload:
    """The workload of `workload=name`; its options are checked, nothing is read or drawn.

    Args:
        name: an installed workload's.
        options: keyword arguments of its constructor.
        seed: the same seed makes the same requests, in any process.

    Raises:
        ConfigError: an option it does not have or allow.
        UnknownPlugin: no such workload.
    """
    workload: Workload = registry.build("workload", name, options, {"seed": seed})
    return workload


def build(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> list[WorkloadRequest]:
    """All requests of `workload=name`, in order of arrival; see `make` and `requests_of`."""
    return list(stream(name, options, seed))


def stream(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> Iterator[WorkloadRequest]:
    """As `build`, one request at a time where the workload can be drawn so. Options are checked at once."""
    return requests_of(make(name, options, seed), name)


def requests_of(workload: Workload, name: str) -> Iterator[WorkloadRequest]:
    """The workload's requests, checked as they come.

    Raises:
        WorkloadError: a source that cannot be read, or no request at all.
        PluginError: the workload yielded something else than requests.
    """
    count = 0
    for request in GuardedWorkload(workload).requests():
        count += 1
        yield request
    if not count:
        raise WorkloadError(f"workload={name} makes 0 requests; there is nothing to serve or replay")
