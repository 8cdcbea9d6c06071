"""mode=kernel, as it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ConfigError
from framework.interfaces.mode import Mode, OnBegin
from framework_testing.kernel.metrics import METRICS
from framework_testing.kernel.options import KernelOptions

if TYPE_CHECKING:
    from framework.config.config import Config


class Kernel(KernelOptions, Mode):
    """An attention backend alone: judged against a float64 reference, then timed over a grid, beside a roofline."""

    metrics: ClassVar = METRICS
    files: ClassVar = ("kernel.jsonl", "roofline.png", "roofline.svg")

    def check(self, config: Config) -> None:
        if config.below.name != "none":
            raise ConfigError(f"below={config.below.name} cannot be in mode=kernel, which has no cache; leave it out")
        if config.observers:
            raise ConfigError("observers cannot be in mode=kernel, which has no cache; leave them out")

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework_testing.kernel.mode import kernel

        return kernel(config, self, on_begin)

    def show(self, folders: Sequence[Path]) -> bool:
        from framework_testing.kernel.mode import show

        show(folders)
        return True

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        return (
            "allocator", "eviction", "hash", "model", "workload", "compression", "below", "replay", "engine",
            "executor", "cache.num_blocks", "cache.memory_fraction", "faults",
        )  # fmt: skip
