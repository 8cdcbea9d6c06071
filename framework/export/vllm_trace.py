"""A trace of what vLLM serves, without its text, as a KV connector that moves no KV."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from framework.errors import ConfigError
from framework.export.vllm_connector import connector_base
from framework.export.vllm_idle import MovesNothing
from framework.workload.traces.private import LiveRequest, PrivateTrace

_LOGGER = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """`TraceConnector`, made when vLLM asks for it by name: without vLLM this module can be imported all the same."""
    if name in ("TraceConnector", "NothingToSay"):  # the second when a worker's process unpickles it
        return _connector_classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers TraceConnector")


def path_of(extra: Mapping[str, Any]) -> Path:
    """The file of a `kv_connector_extra_config`.

    Raises:
        ConfigError: no path, or an option that is none.
    """
    if unknown := sorted(set(extra) - {"path"}):
        raise ConfigError(f"kv_connector_extra_config of TraceConnector has path, found {', '.join(unknown)}")
    path = extra.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError(f"TraceConnector writes to kv_connector_extra_config's path, found {path!r}; name a new file")
    return Path(path)


class TraceMethods(MovesNothing):
    """What the scheduler's side does; the workers' side does nothing.

    NOTE. A request's blocks have the hashes that vLLM gives them when it ends, those of its answer included: so the
    trace is exact to the block, and needs no event of the cache. A file that cannot be written ends the recording, with
    one error in the log; vLLM goes on.

    Attributes:
        trace: None before the scheduler starts, and where recording has ended.
    """

    path: Path
    trace: PrivateTrace | None = None
    _num_steps = 0

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """vLLM's scheduler is about to start with this manager."""
        size = int(kv_cache_manager.block_pool.hash_block_size)
        self.trace = PrivateTrace(self.path, size, source="vllm", clock="steps")
        self._live: dict[str, LiveRequest] = {}

    def on_new_request(self, request: Any) -> None:
        """A request entered the engine."""
        if self.trace is None:
            return
        live = LiveRequest(
            arrival_s=float(self._num_steps),
            prompt_tokens=int(request.num_prompt_tokens),
            session=getattr(request, "session_id", None),
            priority=-int(request.priority),  # there, lower is more important
        )
        self._live[request.request_id] = live
        self.trace.arrived(live)

    def scheduled(self, num_tokens: int) -> None:
        """A step was scheduled; one without a token is none."""
        self._num_steps += num_tokens > 0

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """A request has ended, however."""
        live = self._live.pop(request.request_id, None) if self.trace is not None else None
        if live is not None and self.trace is not None:
            live.hashes = [bytes(name) for name in request.block_hashes]
            live.total_tokens = int(request.num_tokens)
            self._guarded(self.trace.ended)
        return False, None

    def shutdown(self) -> None:
        """vLLM is about to end."""
        if self.trace is not None:
            self._guarded(self.trace.close)

    def _guarded(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            self.trace = None
            _LOGGER.error("%s cannot be written (%s): the recording ends here, vLLM goes on", self.path, error)


@cache
def _connector_classes() -> dict[str, type]:
    base = connector_base()

    class TraceConnector(TraceMethods, base.KVConnectorBase_V1, base.SupportsHMA):  # type: ignore[name-defined, misc]
        """Writes a trace of what is served; it moves no KV."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            self.path = path_of(vllm_config.kv_transfer_config.kv_connector_extra_config)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """Nothing for the workers."""
            self.scheduled(scheduler_output.total_num_scheduled_tokens)
            return NothingToSay()

    class NothingToSay(base.KVConnectorMetadata):  # type: ignore[name-defined, misc]
        """What the scheduler's side has to say to the workers' side."""

    classes: dict[str, type] = {"TraceConnector": TraceConnector, "NothingToSay": NothingToSay}
    for name, made in classes.items():
        made.__qualname__ = name
    return classes
