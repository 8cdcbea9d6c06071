"""Our eviction policies in vLLM's GPU tier, as a KV connector that moves no KV."""

from __future__ import annotations

import gc
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, Unsupported
from framework.interfaces.groups import Kind, KVGroup
from framework_engines import vllm_metrics
from framework_engines.host_blocks import build_policy
from framework_engines.pool_facts import GroupFacts, PoolFacts
from framework_engines.vllm_metrics import name_of
from framework_engines.vllm_watch import MissWatch, PoolWatch

TESTED = ("0.32.0", "0.33.0")
"""Versions of vLLM with which every hook below was tested; others are led where they have the same hooks."""

HOOKS: dict[str, dict[str, list[str]]] = {
    "KVCacheManager": {
        "allocate_slots": ["request"], "new_step_starts": [], "free": ["request"], "pop_blocks_for_free": ["request"],
    },
    "BlockPool": {
        "touch": ["blocks"], "evict_blocks": ["block_ids"], "reset_prefix_cache": [],
        "cache_full_blocks": ["request", "blocks", "num_cached_blocks", "num_full_blocks"],
    },
    "FreeKVCacheBlockQueue": {
        "popleft": [], "popleft_n": ["n"], "remove": ["block"], "append_n": ["blocks"], "prepend_n": ["blocks"],
    },
    "RequestQueue": {
        "add_request": ["request"], "prepend_request": ["request"], "prepend_requests": ["requests"],
        "peek_request": [], "pop_request": [], "remove_request": [], "remove_requests": ["requests"],
    },
    "KVCacheCoordinator": {"find_longest_cache_hit": ["block_hashes", "max_cache_hit_length"]},
    "OrderedPool": {"cache_full_blocks": ["request", "blocks", "num_cached_blocks", "num_full_blocks"]},
    "KVConnectorBase_V1": {"bind_kv_cache_manager": ["kv_cache_manager"], "on_new_request": ["request"]},
}  # fmt: skip
"""Methods of vLLM's classes that are wrapped, replaced or waited for, and their leading parameters."""
BEFORE: Mapping[str, tuple[str, list[str]]] = {"bind_kv_cache_manager": ("bind_gpu_block_pool", ["gpu_block_pool"])}
"""What earlier versions have in place of a hook."""

KINDS: Mapping[str, Kind | None] = {
    "FullAttentionSpec": "full", "SlidingWindowSpec": "window", "ChunkedLocalAttentionSpec": "chunk",
    "MambaSpec": "state", "RSWASpec": None,
}  # fmt: skip
"""What vLLM's specifications of a group, and those derived of them, are here; None: nothing."""

_LOGGER = logging.getLogger("vllm.framework.export")  # below vLLM's own logger, whose handlers print it
_OPTIONS = ("eviction", "seed", "clock", "explain")
CLOCKS = ("seconds", "steps")
"""What a plugin's `now` may be: seconds since the start, or the number of the step."""


def __getattr__(name: str) -> Any:
    """`PolicyConnector`, made when vLLM asks for it by name: without vLLM this module can be imported all the same."""
    if name in ("PolicyConnector", "Nothing"):  # the second when a worker's process unpickles it
        return _connector_classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers PolicyConnector")


def lead(
    manager: Any, eviction: Any = "lru", *, seed: int = 0, clock: Callable[[], float] = time.monotonic
) -> PoolWatch:
    """From here on, `eviction` names what the pool of this KVCacheManager evicts.

    Args:
        manager: vLLM's KVCacheManager, before its first request.
        eviction: an installed policy's name, a mapping with a name and options, a class, or an object (copied).
        seed: for policies that draw.
        clock: the policy's `now`, non-decreasing.

    Raises:
        Unsupported: vLLM lacks a hook; prefix caching is off; as `kv_groups`; a policy of the future.
        InvalidArgument, UnknownPlugin and others: as `build_policy`.
    """
    pool = manager.block_pool
    require_hooks(KVCacheManager=manager, BlockPool=pool, FreeKVCacheBlockQueue=pool.free_block_queue)
    if not manager.enable_caching:
        raise Unsupported("prefix caching is off, so there is nothing to evict; --enable-prefix-caching")
    num_blocks, managers = pool.num_gpu_blocks - 1, manager.coordinator.single_type_managers
    block_size, hash_of = managers[0].block_size, importlib.import_module("vllm.v1.core.kv_cache_utils").get_block_hash
    if manager.num_kv_cache_groups == 1:
        policy = build_policy(eviction, num_blocks, block_size=block_size, seed=seed)
        facts, tokens = PoolFacts(policy, num_blocks, block_size, clock), f"{block_size} tokens"
    else:
        groups, hash_of = kv_groups(manager), bytes
        policy = build_policy(eviction, num_blocks, block_size=pool.hash_block_size, seed=seed)
        facts = GroupFacts(policy, groups, num_blocks, pool.hash_block_size, clock)
        tokens = ", ".join(f"{group.block_tokens} tokens ({group.kind})" for group in groups)
    watch = PoolWatch(manager, facts, hash_of)
    what = type(policy).__name__, num_blocks, tokens, tested_note()
    _LOGGER.info("%s names what vLLM evicts, over %d blocks of %s%s", *what)
    return watch


def tested_note() -> str:
    """For the log, where this vLLM is not among those that were tested."""
    version = importlib.import_module("vllm.version").__version__
    return "" if version.partition("+")[0] in TESTED else f"; tested with {' and '.join(TESTED)}, this is {version}"


def drops_of(coordinator: Any) -> Any:
    """Numbers of the groups whose hits end a block earlier, for a draft model."""
    return getattr(coordinator, "drop_eagle_group_ids", getattr(coordinator, "eagle_group_ids", ()))


def kv_groups(manager: Any) -> list[KVGroup]:
    """The KV cache groups of a KVCacheManager, in its order.

    Raises:
        Unsupported: a group of a kind that no replay here knows, or one whose blocks are in a pool of its own.
    """
    coordinator, groups = manager.coordinator, list[KVGroup]()
    drops = drops_of(coordinator)
    described = zip(coordinator.single_type_managers, coordinator.kv_cache_config.kv_cache_groups, strict=True)
    for number, (one, group) in enumerate(described):
        whole, layers = group.kv_cache_spec, len(group.layer_names)
        spec = next(iter(whole.kv_cache_specs.values())) if hasattr(whole, "kv_cache_specs") else whole
        kind = next((KINDS[base.__name__] for base in type(spec).__mro__ if base.__name__ in KINDS), None)
        if kind is None or one.block_pool is not manager.block_pool:
            raise Unsupported(
                f"KV cache group {number} is of {type(spec).__name__}"
                + ("" if kind is None else " with blocks in a pool of its own")
                + "; PolicyConnector leads full, sliding-window and chunked attention and recurrent states in one "
                "pool; serve this model without it"
            )
        groups.append(KVGroup(
            name=f"{kind}_{number}", kind=kind, block_tokens=one.block_size,
            block_bytes=whole.page_size_bytes * (layers if spec is whole else 1),
            length=getattr(spec, {"window": "sliding_window", "chunk": "attention_chunk_size"}.get(kind, ""), 0),
            lookahead_drop=number in drops and kind in ("full", "window"),
        ))  # fmt: skip
    return groups


def require_hooks(**objects: Any) -> None:
    """Raises Unsupported, naming what is missing, unless each of vLLM's objects, or classes, has its `HOOKS`."""
    missing = []
    for owner, owned in objects.items():
        for method, expected in HOOKS[owner].items():
            ways = [(method, expected), *([BEFORE[method]] if method in BEFORE else [])]
            if not any(_has(owned, *way) for way in ways):
                missing.append(" or ".join(f"{owner}.{name}({', '.join(names)})" for name, names in ways))
    if missing:
        raise Unsupported(
            f"this vLLM lacks what this package stands on: {', '.join(missing)}; "
            f"they were tested with vLLM {' and '.join(TESTED)}"
        )


def _has(owner: Any, method: str, expected: list[str]) -> bool:
    call = getattr(owner, method, None)
    parameters = [name for name in inspect.signature(call).parameters if name != "self"] if call else []
    return call is not None and parameters[: len(expected)] == expected


def manager_of(pool: Any) -> Any:
    """The KVCacheManager whose pool this is, which vLLM has made a moment ago and does not hand over.

    Raises:
        Unsupported: there is none, or several.
    """
    managers = (one for one in gc.get_objects() if type(one).__name__ == "KVCacheManager")
    matching = [one for one in managers if getattr(one, "block_pool", None) is pool]
    if len(matching) != 1:
        raise Unsupported(f"this vLLM hands over a BlockPool with {len(matching)} KVCacheManagers; one is needed")
    return matching[0]


def connector_base() -> Any:
    """vLLM's module of connectors.

    Raises:
        Unsupported: vLLM cannot be imported, or its connectors lack a hook.
    """
    try:
        base = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
    except ImportError as error:
        raise Unsupported(f"vLLM cannot be imported ({error}); pip install vllm=={TESTED[-1]}") from error
    require_hooks(KVConnectorBase_V1=base.KVConnectorBase_V1)
    return base


def options_of(extra: Mapping[str, Any]) -> tuple[Any, int, str]:
    """Policy, None for vLLM's own order, seed and clock of a `kv_connector_extra_config`.

    Raises:
        ConfigError: an option that is none, or no such clock. As `build_policy`: no such policy.
    """
    if unknown := sorted(set(extra) - set(_OPTIONS)):
        raise ConfigError(f"kv_connector_extra_config of PolicyConnector has {_OPTIONS}, found {', '.join(unknown)}")
    clock = extra.get("clock", "seconds")
    if clock not in CLOCKS:
        raise ConfigError(f"clock is one of {', '.join(CLOCKS)}, found {clock!r}")
    seed = extra.get("seed", 0)
    if type(seed) is not int:
        raise ConfigError(f"seed is an integer, found {seed!r}")
    eviction = extra.get("eviction", "lru")
    if eviction is not None:
        build_policy(eviction, 1)
    return eviction, seed, clock


@cache
def _connector_classes() -> dict[str, type]:
    base = connector_base()
    Stats, Metrics = vllm_metrics.classes("PolicyConnector", __name__)

    class PolicyConnector(_Methods, base.KVConnectorBase_V1, base.SupportsHMA):  # type: ignore[name-defined, misc]
        """An eviction policy of this package's in vLLM's GPU tier; it moves no KV."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            self.options = options_of(vllm_config.kv_transfer_config.kv_connector_extra_config)
            self.explain = vllm_config.kv_transfer_config.kv_connector_extra_config.get("explain")
            self.watch, self.misses, self._start, self._reported = None, None, time.monotonic(), {}

        @classmethod
        def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
            """Nothing is copied layer by layer. vLLM asks before it loads the model, so a wrong option ends there."""
            options_of(extra_config)
            return False

        @classmethod
        def get_required_kvcache_layout(cls, vllm_config: Any) -> None:
            """Any layout will do. Asked before the model is loaded, as above."""
            options_of(vllm_config.kv_transfer_config.kv_connector_extra_config)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """Nothing for the workers."""
            self._scheduled(scheduler_output)
            return Nothing()

        def get_kv_connector_stats(self) -> Any:
            """For vLLM's log and /metrics, asked after each step."""
            counted = self._counted()
            return Stats(data=counted) if counted else None

        @classmethod
        def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
            """The same again in the process of the log."""
            return Stats(data=data or {})

        @classmethod
        def build_prom_metrics(cls, *given: Any, **more: Any) -> Any:
            """The counters of /metrics."""
            return Metrics(*given, **more)

    class Nothing(base.KVConnectorMetadata):  # type: ignore[name-defined, misc]
        """What the scheduler's side has to say to the workers' side."""

    return importable(PolicyConnector, Nothing)


def importable(*classes: type) -> dict[str, type]:
    """By name, classes made in a function that a worker's process is to find in its module."""
    for made in classes:
        made.__qualname__ = made.__name__
    return {made.__name__: made for made in classes}


class MovesNothing:
    """Every answer that vLLM asks of a KV connector, of one without bytes to move. Needs no base class of vLLM's."""

    requires_kv_delivery = False  # nothing is handed off that a preemption could spoil

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """As `bind_kv_cache_manager`, which vLLM 0.28 has not: its connectors get the pool alone."""
        if not hasattr(super(), "bind_kv_cache_manager"):
            self.bind_kv_cache_manager(manager_of(gpu_block_pool))  # type: ignore[attr-defined]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Nothing is found outside the pool."""
        return 0, False

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Nothing to save: the blocks may be freed."""
        return False, None

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Nothing to load, to save or to wait for."""

    update_state_after_alloc = start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _nothing

    def reset_cache(self) -> bool:
        """There is no cache of the connector's own."""
        return True


class _Methods(MovesNothing):
    """What vLLM asks of a connector, without a base class of vLLM's."""

    options: tuple[Any, int, str]
    watch: PoolWatch | None
    misses: MissWatch | None
    explain: str | None
    _start: float
    _reported: dict[str, float]
    _manager: Any = None

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """vLLM's scheduler is about to start with this manager."""
        self._manager = kv_cache_manager
        eviction, seed, clock = self.options
        if eviction is not None:
            self.watch = lead(
                kv_cache_manager, eviction, seed=seed, clock=self._seconds if clock == "seconds" else self._step
            )
        if self.explain is not None:
            if kv_cache_manager.num_kv_cache_groups != 1:
                raise Unsupported(
                    f"explain has a cause for each block of one group, and the model has "
                    f"{kv_cache_manager.num_kv_cache_groups} KV cache groups; leave it out"
                )
            hash_of = importlib.import_module("vllm.v1.core.kv_cache_utils").get_block_hash
            folder = Path(self.explain)
            self.misses = MissWatch(kv_cache_manager, hash_of, policy=name_of(eviction), folder=folder)

    def shutdown(self) -> None:
        """vLLM ends: what was missed, and why, is written."""
        if self.misses is not None:
            self.misses.close()

    def on_new_request(self, request: Any) -> None:
        """A request entered the engine."""
        if self.watch is not None:
            self.watch.arrived(request)

    def _scheduled(self, output: Any) -> None:
        """A step was scheduled, as vLLM's SchedulerOutput says."""
        if self.watch is not None:
            self.watch.scheduled(output)

    def _counted(self) -> dict[str, float]:
        """What the policy, and an order beside it, did since this was last asked; empty in a worker."""
        if self.watch is None:
            return {}
        queue, reported = self.watch.queue, self._reported
        now = {"seconds": queue.seconds, "victims": queue.num_victims, "failures": int(queue.failure is not None)}
        if (ordered := getattr(self._manager, "ordered", None)) is not None:
            now["overdue"] = ordered.num_overdue
        self._reported = now
        return {key: count - reported.get(key, 0) for key, count in now.items() if count != reported.get(key, 0)}

    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _step(self) -> float:
        return 0.0 if self.watch is None else float(self.watch.num_steps)
