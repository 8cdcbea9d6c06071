"""Our tiering rules in vLLM's CPU offloading, as its `OffloadingSpec`."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any

from framework.errors import Unsupported
from framework.guard.tiering import GuardedTiering
from framework.interfaces.tiering import TierBlock, Tiering
from framework.registry.components import Component, build_component
from framework.types import BlockHash

INTERFACE = "vllm 0.33.0, vllm/v1/kv_offload/cpu/manager.py"
"""Where the signatures below were taken from."""

_PREFIX = "kvlab_"
_MOST = 1 << 20  # contents whose uses are counted; the longest unused are forgotten first
_GROUP_BYTES = 4  # the cache group that ends vLLM's keys


def __getattr__(name: str) -> Any:
    """`kvlab_<rule>`: the spec of an installed rule, for vLLM to find by module path and name."""
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; rules are named {_PREFIX}<rule>")
    return as_vllm_spec(name.removeprefix(_PREFIX))


def as_vllm_spec(rule: Component) -> type[Any]:
    """A subclass of vLLM's `CPUOffloadingSpec` that stores in the CPU tier what `rule` stores.

    An engine needs no code: `{"spec_name": "kvlab_on_second_hit", "spec_module_path": "framework.export.vllm_tiering",
    "cpu_bytes_to_use": ...}` in the offloading connector's extra configuration; beside it, `eviction_policy` and
    `cache_policy_module_path` name the policy (see framework.export.vllm).

    Raises:
        Unsupported: vLLM is not installed or has another interface, or the rule stores nothing but what is evicted.
        UnknownPlugin and others: as `framework.registry.build`.
    """
    _built(rule)  # refused here, rather than when an engine starts
    try:
        base: Any = importlib.import_module("vllm.v1.kv_offload.cpu.spec").CPUOffloadingSpec
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"vLLM's CPUOffloadingSpec cannot be imported ({error}); needed is {INTERFACE}") from error

    def get_manager(self: Any) -> Any:
        new = not self._manager
        manager = base.get_manager(self)
        return with_rule(manager, rule) if new else manager

    return type(f"{type(_built(rule)).__name__}Spec", (base,), {"get_manager": get_manager})


def with_rule(manager: Any, rule: Component) -> Any:
    """The same manager of vLLM's, which from here on is offered only what `rule` stores.

    vLLM offers blocks that a request computed or found, never those that its GPU pool evicts, and asks nobody how much
    to load: the rule is asked about "written" and "used" blocks, and its `load` is not. A block is "written" when it is
    offered for the first time and "used" after that; `uses` counts its offers.

    Raises:
        Unsupported: the rule stores nothing but what is evicted.
    """
    manager.prepare_store = _Offers(manager.prepare_store, manager.lookup, _built(rule))
    return manager


def _built(rule: Component) -> Tiering:
    built: Tiering = build_component("tiering", rule, {})
    probe: Tiering = build_component("tiering", rule, {})
    blocks = [TierBlock(BlockHash(b"probe"), 0, 0, 16, uses) for uses in range(1, 65)]
    if not any(probe.store(block, event, 0.0) for block in blocks for event in ("written", "used")):
        raise Unsupported(
            f"{type(built).__name__} stores nothing but what is evicted, which vLLM's CPU offloading does not offer; "
            "take a rule such as write_through or on_second_hit"
        )
    return built


class _Offers:
    """`prepare_store` of a manager, of what the rule lets through."""

    def __init__(self, store: Any, lookup: Any, rule: Tiering) -> None:
        self._store, self._lookup, self._rule = store, lookup, GuardedTiering(rule)
        self._uses: dict[bytes, int] = {}
        self._calls = 0

    def __call__(self, keys: Collection[bytes], req_context: Any) -> Any:
        self._calls += 1
        return self._store(
            [key for depth, key in enumerate(keys) if self._wanted(key, depth, req_context)], req_context
        )

    def _wanted(self, key: bytes, depth: int, req_context: Any) -> bool:
        """Whether to offer this key: it is there, and so in use, or the rule stores it."""
        uses = self._uses[key] = self._uses.pop(key, 0) + 1
        if len(self._uses) > _MOST:
            del self._uses[next(iter(self._uses))]
        if self._lookup(key, req_context).name != "MISS":
            return True
        tokens = int(req_context.get_offload_key_position(key) or 0)
        block = TierBlock(BlockHash(bytes(key[:-_GROUP_BYTES])), 0, depth, tokens, uses)
        return self._rule.store(block, "written" if uses == 1 else "used", float(self._calls))
