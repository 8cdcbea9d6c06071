"""What a policy that leads vLLM costs and does, in vLLM's log and /metrics."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

COUNTERS: Mapping[str, str] = {
    "seconds": "Seconds that the eviction policy, and what it may read of the pool, took in the scheduler.",
    "victims": "Blocks that the eviction policy gave up.",
    "failures": "Failures of the eviction policy: after one vLLM evicts in its own order.",
}
"""Counts of one interval, as `PolicyStats.data` has them; in /metrics `vllm:eviction_policy_<name>_total`."""


def name_of(eviction: Any) -> str:
    """What a policy is called in vLLM: the name that it was chosen by."""
    if eviction is None:
        return "vllm"
    if isinstance(eviction, Mapping):
        return str(eviction.get("name"))
    return eviction if isinstance(eviction, str) else type(eviction).__name__


class PolicyStats:
    """`KVConnectorStats` over `data`, without a base class of vLLM's: counts since they were last asked for."""

    data: dict[str, Any]

    def reset(self) -> None:
        """Nothing has happened."""
        self.data.clear()

    def aggregate(self, other: PolicyStats) -> PolicyStats:
        """Both intervals together."""
        for key, count in other.data.items():
            self.data[key] = self.data.get(key, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log."""
        return {f"eviction_policy_{key}": round(self.data.get(key, 0), 6) for key in COUNTERS}

    def is_empty(self) -> bool:
        """Whether nothing has happened."""
        return not any(self.data.values())


class PolicyMetrics:
    """`KVConnectorPromMetrics` of them, without a base class of vLLM's."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[Any]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)  # type: ignore[call-arg]
        counter: Any = self._counter_cls  # type: ignore[attr-defined]
        policy = name_of(vllm_config.kv_transfer_config.kv_connector_extra_config.get("eviction", "lru"))
        self._counters: dict[str, dict[int, Any]] = {}
        for key, meaning in COUNTERS.items():
            made = counter(
                name=f"vllm:eviction_policy_{key}", documentation=meaning, labelnames=[*labelnames, "policy"]
            )
            self._counters[key] = {
                engine: made.labels(*values, policy) for engine, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        """Another interval of one engine."""
        for key, engines in self._counters.items():
            engines[engine_idx].inc(transfer_stats_data.get(key, 0))


def classes(connector: str, module: str) -> tuple[type[Any], type[Any]]:
    """Both with vLLM's base classes, for the connector of this name, by which vLLM's MultiConnector looks for them."""
    place = "vllm.distributed.kv_transfer.kv_connector"
    base, factory = importlib.import_module(f"{place}.v1.metrics"), importlib.import_module(f"{place}.factory")
    if connector not in factory.KVConnectorFactory._registry:
        factory.KVConnectorFactory.register_connector(connector, module, connector)
    return (
        type("Stats", (PolicyStats, base.KVConnectorStats), {}),
        type("Metrics", (PolicyMetrics, base.KVConnectorPromMetrics), {}),
    )
