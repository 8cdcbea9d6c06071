"""A trace of what vLLM serves, with its tokens or without, as a KV connector that moves no KV."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from framework.engine.executors.base import work_of
from framework.errors import ConfigError
from framework_engines.vllm_connector import MovesNothing, connector_base, importable
from framework_engines.vllm_watch import contents_of, tenant_of
from framework_traces.private import LiveRequest, PrivateTrace

_LOGGER = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """`TraceConnector`, made when vLLM asks for it by name: without vLLM this module can be imported all the same."""
    if name in ("TraceConnector", "NothingToSay"):  # the second when a worker's process unpickles it
        return _connector_classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers TraceConnector")


_OPTIONS = ("path", "steps", "tokens")


def options_of(extra: Mapping[str, Any]) -> tuple[Path, Path | None, bool]:
    """The trace's file of a `kv_connector_extra_config`, that of the steps or None, and whether tokens are kept.

    Raises:
        ConfigError: no path, or an option that is none.
    """
    if unknown := sorted(set(extra) - set(_OPTIONS)):
        raise ConfigError(f"kv_connector_extra_config of TraceConnector has {_OPTIONS}, found {', '.join(unknown)}")
    paths = {"path": None, **extra}
    tokens = paths.pop("tokens", False)
    if type(tokens) is not bool:
        raise ConfigError(f"tokens of TraceConnector is true or false, found {tokens!r}")
    for name, path in paths.items():
        if not isinstance(path, str) or not path:
            raise ConfigError(
                f"TraceConnector writes to kv_connector_extra_config's {name}, found {path!r}; name a new file"
            )
    return Path(extra["path"]), Path(extra["steps"]) if "steps" in extra else None, tokens


class TraceMethods(MovesNothing):
    """What the scheduler's side does; the workers' side does nothing.

    NOTE. A request's blocks have the hashes that vLLM gives them when it ends, those of its answer included: so the
    trace is exact to the block, and needs no event of the cache. A file that cannot be written ends the recording, with
    one error in the log; vLLM goes on.

    Attributes:
        tokens: write what was asked and answered, not only which blocks are equal.
        trace: None before the scheduler starts, and where recording has ended.
        steps: of a file of steps, None without one. See `TimedSteps`.
    """

    path: Path
    tokens = False
    trace: PrivateTrace | None = None
    steps: TimedSteps | None = None
    _num_steps = 0

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """vLLM's scheduler is about to start with this manager."""
        size = int(kv_cache_manager.block_pool.hash_block_size)
        self.trace = PrivateTrace(self.path, size, plain=self.tokens, source="vllm", clock="steps")
        self._live: dict[str, LiveRequest] = {}
        self._start = time.monotonic()

    def on_new_request(self, request: Any) -> None:
        """A request entered the engine."""
        if self.trace is not None:
            live = self._live[request.request_id] = LiveRequest(
                arrival_s=float(self._num_steps),
                seconds=time.monotonic() - self._start,
                prompt_tokens=int(request.num_prompt_tokens),
                session=getattr(request, "session_id", None),
                tenant=tenant_of(request),
                priority=-int(request.priority),  # there, lower is more important
            )
            self.trace.arrived(live)

    def scheduled(self, output: Any) -> None:
        """A step was scheduled, as vLLM's SchedulerOutput says; one without a token is none."""
        steps = self.steps
        if output.total_num_scheduled_tokens:
            self._num_steps += 1
            if steps is not None:
                self._guarded(lambda: steps.scheduled(output))

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """A request has ended, however."""
        live = self._live.pop(request.request_id, None) if self.trace is not None else None
        if live is not None and self.trace is not None:
            live.hashes = [bytes(name) for name in request.block_hashes]
            live.total_tokens = int(request.num_tokens)
            if self.tokens:
                live.tokens, live.scope = [*request.all_token_ids], request.cache_salt or ""
                live.contents = contents_of(request)
            self._guarded(self.trace.ended)
        if self.steps is not None and not self._live:
            self._guarded(self.steps.idle)
        return False, None

    def shutdown(self) -> None:
        """vLLM is about to end."""
        if self.trace is not None:
            self._guarded(self.trace.close)
        if self.steps is not None:
            self._guarded(self.steps.close)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            with suppress(OSError):
                if self.trace is not None:
                    self.trace.close()
            self.trace = self.steps = None
            _LOGGER.error("%s cannot be written (%s): the recording ends here, vLLM goes on", self.path, error)


class TimedSteps:
    """A file of what each step computed and how long it took, for `python -m framework calibrate`.

    A step lasts until the scheduler begins the next, so what the engine does between them belongs to it. The last one
    before the engine has nothing to do has no such end: its line has no seconds, and a calibration leaves it out.

    Args:
        path: a new file.
        ahead: vLLM schedules asynchronously: a step is scheduled while the one before it runs, and ends when the step
            after the next is scheduled.

    Raises:
        ConfigError: the file is there already, or cannot be written. OSError, of any method: it no longer can be.
    """

    def __init__(self, path: Path, *, ahead: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        self._ahead, self._clock = int(ahead), clock
        self._pending: list[dict[str, Any]] = []
        self._since = 0.0
        try:
            self._file = path.open("x", buffering=1, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}; choose another name") from error

    def scheduled(self, output: Any) -> None:
        """A step begins: vLLM's SchedulerOutput."""
        now, since = self._clock(), self._since
        self._since = now
        if len(self._pending) > self._ahead:
            self._write(self._pending.pop(0), now - since)
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        pairs = [(count, before[name]) for name, count in output.num_scheduled_tokens.items()]
        num_new, computed = np.array(pairs, dtype=np.int64).T
        self._pending.append(work_of(num_new, computed))

    def idle(self) -> None:
        """Every request has ended."""
        for step in self._pending:
            self._write(step, None)
        self._pending = []

    def close(self) -> None:
        """Nothing follows."""
        self.idle()
        self._file.close()

    def _write(self, step: dict[str, Any], seconds: float | None) -> None:
        self._file.write(json.dumps({**step, "step_s": seconds}) + "\n")


@cache
def _connector_classes() -> dict[str, type]:
    base = connector_base()

    class TraceConnector(TraceMethods, base.KVConnectorBase_V1, base.SupportsHMA):  # type: ignore[name-defined, misc]
        """Writes a trace of what is served; it moves no KV."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            self.path, steps, self.tokens = options_of(vllm_config.kv_transfer_config.kv_connector_extra_config)
            if steps is not None and role == base.KVConnectorRole.SCHEDULER:
                self.steps = TimedSteps(steps, ahead=bool(vllm_config.scheduler_config.async_scheduling))

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """Nothing for the workers."""
            self.scheduled(scheduler_output)
            return NothingToSay()

    class NothingToSay(base.KVConnectorMetadata):  # type: ignore[name-defined, misc]
        """What the scheduler's side has to say to the workers' side."""

    return importable(TraceConnector, NothingToSay)
