"""mode=cache_only, as it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework import registry
from framework.errors import ConfigError
from framework.interfaces.mode import Mode, OnBegin
from framework.modes import unread_of_a_trace
from framework_cache_only.metrics import METRICS
from framework_cache_only.parts import CacheOnlyBelow, CacheOnlyObserver
from framework_cache_only.replay_core import PYTHON

if TYPE_CHECKING:
    from framework.config.config import Config


class CacheOnly(Mode):
    """Each request of a trace is one access to a cache of blocks: the mode of published hit rates.

    Args:
        replay_core: what counts, python or an installed replay core.
        leaf_first: evict only blocks without resident children.
        full_blocks_only: a partial last block is never cached.
        optimum: also report the gap to the offline optimum.
    """

    workload, repeats, metrics = "conversations", ("eviction",), METRICS

    def __init__(
        self,
        *,
        replay_core: str = "python",
        leaf_first: bool = False,
        full_blocks_only: bool = False,
        optimum: bool = True,
    ) -> None:
        self.replay_core, self.optimum = replay_core, optimum
        self.leaf_first, self.full_blocks_only = leaf_first, full_blocks_only

    def check(self, config: Config) -> None:
        if self.replay_core != PYTHON:
            registry.load("replay_core", self.replay_core)
        parts = [("observer", entry["name"]) for entry in config.observers]
        of_engines = {"below": config.below, "compression": config.compression, "scheduling": config.scheduling}
        parts += [(kind, one.name) for kind, one in of_engines.items() if one.name not in ("none", "fcfs")]
        for kind, name in parts:
            if not issubclass(registry.load(kind, name), (CacheOnlyObserver, CacheOnlyBelow)):
                raise ConfigError(f"{kind} {name} has no part in mode=cache_only, which has no engine; leave it out")

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework_cache_only.mode import cache_only

        return cache_only(config, self, on_begin)

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        timed = ("step_s", "costs", "optimum", "slo_ttft_s", "slo_tpot_s", "device", "efficiency")
        return (
            *unread_of_a_trace(config),
            "engine",
            "faults",
            "allocator",
            "hash",
            *(f"replay.{key}" for key in timed),
        )
