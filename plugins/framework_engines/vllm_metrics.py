"""What a policy that leads vLLM costs and does, and an order beside it, in vLLM's log and /metrics."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

COUNTERS: Mapping[str, tuple[str, str]] = {
    "seconds": (
        "eviction_policy_seconds",
        "Seconds that the eviction policy, and what it may read of the pool, took in the scheduler.",
    ),
    "victims": ("eviction_policy_victims", "Blocks that the eviction policy gave up."),
    "failures": (
        "eviction_policy_failures", "Failures of the eviction policy: after one vLLM evicts in its own order."
    ),
    "overdue": (
        "scheduling_overdue", "Requests that were admitted before their place in the order, for its bound on waiting."
    ),
}  # fmt: skip
"""Counts of one interval, as `PolicyStats.data` has them: name, in /metrics `vllm:<name>_total`, and meaning. The last
where an order leads the requests that wait, whose name is then the label `policy`."""


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
        return {name: round(self.data.get(key, 0), 6) for key, (name, _) in COUNTERS.items()}

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
        order = (getattr(vllm_config, "additional_config", None) or {}).get("scheduling")
        self._counters: dict[str, dict[int, Any]] = {}
        for key, (name, meaning) in COUNTERS.items():
            if key == "overdue" and order is None:
                continue
            made = counter(name=f"vllm:{name}", documentation=meaning, labelnames=[*labelnames, "policy"])
            leads = name_of(order) if key == "overdue" else policy
            self._counters[key] = {
                engine: made.labels(*values, leads) for engine, values in per_engine_labelvalues.items()
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
