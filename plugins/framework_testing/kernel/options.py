"""The options of mode=kernel."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from framework.config.sections import MAX_BLOCK_SIZE, Seconds
from framework.validation import Options

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
