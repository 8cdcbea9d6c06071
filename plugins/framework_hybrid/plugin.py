"""mode=hybrid, as it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from framework.errors import ConfigError
from framework.interfaces.mode import OnBegin
from framework.modes import Replay
from framework.validation import INT64, Natural, Options
from framework_cache_only.plugin import CacheOnly
from framework_hybrid.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from framework.config.config import Config


class HybridOptions(Options):
    """The groups of KV of a hybrid model, and how a replay keeps them."""

    section: ClassVar[str] = "mode"

    model: str = Field(description="a name in framework_hybrid.shapes, or a config.json")
    rule: str = Field(
        "retention",
        description="which checkpoints are kept: dense, retention, turns, junctions, every, at_most, superseding",
    )
    interval: Natural = Field(0, description="rules retention, turns, every, at_most: tokens between two checkpoints")
    count: int = Field(8, description="rule at_most: states kept on a path", ge=2, le=INT64)
    cache_only: bool = Field(
        False, description="each request is one access, as in mode=cache_only; false: through the engine"
    )
    optimum: bool = Field(True, description="cache_only: also report a bound of the hits")
    order: Literal["coupled", "coverage", "marconi", "marconi_as_coded", "quota"] | None = Field(
        None, description="order of eviction across groups; null: eviction=NAME alone"
    )


class Hybrid(HybridOptions, Replay):
    """A replay of a model with several kinds of KV: windows or recurrent states beside full attention."""

    metrics: ClassVar = METRICS

    def check(self, config: Config) -> None:
        from framework.config.config import default_choices

        allocator, default = config.allocator.name, default_choices()["allocator"]
        of_one_group = {
            "allocator": allocator if allocator != default else None,
            "cache.kv_dtype": config.cache.kv_dtype,
            "observers": [entry["name"] for entry in config.observers if self.cache_only],
            "replay.optimum": config.replay.optimum,
            "below": config.below.name if config.below.name != "none" else None,
            "compression": config.compression.name if config.compression.name != "none" else None,
        }  # fmt: skip
        for key, value in of_one_group.items():
            if value:
                raise ConfigError(f"{key}={value} is of caches with one group of KV; leave it out, or mode=hybrid")
        if self.cache_only and config.scheduling.name != "fcfs":
            raise ConfigError(
                f"scheduling={config.scheduling.name} has no part in mode.cache_only, which has no engine"
            )

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework_hybrid.mode import hybrid

        return hybrid(config, self, on_begin)

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        words = CacheOnly.unread(config) if config["mode"].get("cache_only") else (*super().unread(config), "allocator")
        return [word for word in words if word not in ("cache.memory", "cache.group_block_size")]
