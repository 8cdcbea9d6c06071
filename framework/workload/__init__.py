"""What is served: prompts, traces, arrival processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from framework.errors import ConfigError
from framework.workload.request import Message, WorkloadRequest

__all__ = ["Message", "WorkloadRequest", "build", "names", "stream"]

_WORKLOADS = {
    "chat": "framework.workload.synthetic",
    "no_sharing": "framework.workload.synthetic",
    "shared_prefix": "framework.workload.synthetic",
    "system_prompts": "framework.workload.scenarios",
    "rag": "framework.workload.scenarios",
    "forks": "framework.workload.scenarios",
    "conversations": "framework.workload.sessions",
    "agents": "framework.workload.sessions",
    "prompts": "framework.workload.prompts",
    "agent_text": "framework.workload.agent_text",
}


def names() -> tuple[str, ...]:
    """The workloads that can be built."""
    return tuple(_WORKLOADS)


def build(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> list[WorkloadRequest]:
    """The requests of `workload=name`, in order of submission.

    Args:
        name: one of `names()`.
        options: keyword arguments of the function of that name.
        seed: the same seed makes the same requests, in any process.

    Raises:
        ConfigError: no such workload, or an option it does not have or allow.
        WorkloadError: a file that cannot be read, naming file, line and field.
    """
    return list(stream(name, options, seed))


def stream(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> Iterator[WorkloadRequest]:
    """As `build`, one request at a time where the workload can be drawn so. Options are checked at once."""
    if name not in _WORKLOADS:
        raise ConfigError(f"no workload named {name!r}; there are: {', '.join(_WORKLOADS)}")
    from framework.registry.options import call_checked

    generate: Callable[..., Iterable[WorkloadRequest]] = getattr(import_module(_WORKLOADS[name]), name)
    return iter(call_checked(f"workload.{name}", generate, {**(options or {}), "seed": seed}))
