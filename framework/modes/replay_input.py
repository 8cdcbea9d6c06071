"""What both replay executors read of a configuration: the trace, and the pool's size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from framework.config.sections import ReplayOptions
from framework.errors import ConfigError, WorkloadError
from framework.registry.options import call_checked, section
from framework.replay.curves import capacity_blocks
from framework.replay.roofline import Roofline
from framework.workload.traces import Trace, TraceRequest, open_trace


def opened_trace(config: Mapping[str, Any], *, block_tokens: int | None) -> tuple[Trace, int | None, float]:
    """The trace of `workload=trace`, how many of its requests are taken, and its speed."""
    workload = section(config, "workload")
    name = workload.pop("name", None)
    if name != "trace":
        raise ConfigError(f"mode=replay takes workload=trace or workload=recording, found {name!r}")

    def trace(
        *,
        path: Path,
        format: str = "auto",
        block_tokens: int | None = block_tokens,
        limit: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        speed: float = 1.0,
    ) -> tuple[Trace, int | None, float]:
        return open_trace(path, format=format, block_tokens=block_tokens, on_error=on_error), limit, speed

    given = {key: value for key, value in workload.items() if not (key == "block_tokens" and value is None)}
    return call_checked("workload.trace", trace, given)


def first(requests: Iterable[TraceRequest], limit: int | None) -> Iterator[TraceRequest]:
    """At most `limit` requests; all of them for None."""
    for number, request in enumerate(requests):
        if limit is not None and number >= limit:
            return
        yield request


def pool_blocks(cache: Mapping[str, Any], options: ReplayOptions, working_set: int | None = None) -> int:
    """The pool's size: cache.num_blocks, or what replay.capacity comes to."""
    if options.capacity is None:
        if cache.get("num_blocks") is None:
            raise ConfigError("mode=replay needs cache.num_blocks or replay.capacity: there is no device to ask")
        return int(cache["num_blocks"])
    if working_set is None and "%" in options.capacity:
        raise ConfigError("replay.capacity as a share of the trace is for executor=cache_only; give bytes")
    token = Roofline(shape=options.shape, dtype=options.dtype).kv_bytes_per_token
    size = token * int(cache.get("block_size", 16))
    return capacity_blocks(options.capacity, working_set=working_set or 0, bytes_per_block=size)


def require_requests(trace: Trace, limit: int | None) -> None:
    """Read up to the first request.

    Raises:
        WorkloadError: there is none, with the number of lines that were left out and the first one's fault.
    """
    if next(first(trace, limit), None) is None:
        why = (
            f" ({trace.num_skipped:,} lines were skipped; the first: {trace.first_error})" if trace.num_skipped else ""
        )
        allowed = f" with workload.limit={limit}" if limit is not None and limit < 1 else ""
        raise WorkloadError(f"{trace.path} holds 0 requests{allowed}{why}; there is nothing to replay")
