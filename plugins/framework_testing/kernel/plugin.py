"""mode=kernel, as it is installed: its options, and what it writes to a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from framework.config.sections import MAX_BLOCK_SIZE, Seconds
from framework.errors import ConfigError
from framework.interfaces.mode import Mode, OnBegin
from framework.results.metric import section, text
from framework.validation import Options

if TYPE_CHECKING:
    from framework.config.config import Config

Lengths = Literal["uniform", "ragged"]
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]


class KernelOptions(Options):
    """The grid that mode=kernel measures. Lists span it; null takes what suits the device. Sizes in tokens."""

    section: ClassVar[str] = "mode"

    batch: tuple[Annotated[int, Field(ge=1, le=2**20)], ...] | None = Field(None, description="decode rows, as [1,32]")
    context: tuple[Tokens, ...] | None = Field(None, description="context of the longest decode row, as [1024,8192]")
    prefill: tuple[Tokens, ...] | None = Field(
        None, description="causal prefill of one prompt of so many tokens; [] for none"
    )
    lengths: tuple[Lengths, ...] = Field(
        ("uniform", "ragged"),
        description="contexts of the decode rows: uniform, or ragged from a tenth of the longest up",
    )
    heads: tuple[str, ...] | None = Field(
        None,
        description="query heads/kv heads/head dim, as [32/8/128]; of latent caches heads/latent+rope: [128/512+64]",
    )
    block_sizes: tuple[Annotated[int, Field(ge=1, le=MAX_BLOCK_SIZE)], ...] | None = Field(
        None, description="null: cache.block_size"
    )
    dtypes: tuple[str, ...] | None = Field(None, description="dtypes of the queries")
    kv_dtype: tuple[str | None, ...] = Field(
        (None,), description="dtypes of the pool, as [null,float8_e4m3fn]; null: that of the queries"
    )
    budget_s: Seconds = Field(1.0, description="seconds, about, to time one cell")


_kernel = section("kernel")

METRICS = (
    _kernel("num_cells", "cells", "", "cells", "Points of the grid: shape, batch, context and kind of work."),
    _kernel("cells", "table", "", "cells by status", "How many cells ended how."),
    _kernel("ceilings", "table", "", "ceilings", "Bytes/s and FLOP/s of this device, measured in this run."),
    _kernel("share_of_ceiling_max", "share", "higher", "best share of its ceiling", "Of all cells, the largest "
           "achieved share of what the ceilings allow.", wall=True),
    _kernel("share_of_ceiling_min", "share", "higher", "worst share of its ceiling", "Of all cells, the smallest.",
           wall=True),
    _kernel("time_s", "s", "lower", "time", "Geometric mean over cells of the median time of one call.", wall=True),
    _kernel("bandwidth_bytes_per_s", "bytes/s", "higher", "bandwidth", "Geometric mean over cells of the least bytes "
           "needed over the time.", wall=True),
    _kernel("screen", "table", "", "compiled ahead of time", "Registers, spills and instructions of each compiled "
           "kernel."),
    text("kernel", "device_model", "device model", "The accelerator or processor."),
    text("kernel", "torch", "torch", "Version of torch."),
    text("kernel", "triton", "triton", "Version of triton."),
    text("kernel", "date", "date", "When the run began, UTC."),
)  # fmt: skip


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
