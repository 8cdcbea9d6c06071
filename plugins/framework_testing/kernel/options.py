"""The options of mode=kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from framework.config.sections import MAX_BLOCK_SIZE
from framework.config.setting import Section, setting

Lengths = Literal["uniform", "ragged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOptions(Section):
    """The grid that mode=kernel measures. Lists span it; null takes what suits the device. Sizes in tokens."""

    section: ClassVar[str] = "mode"

    batch: tuple[int, ...] | None = setting(None, "decode rows, as [1,32]", at_least=1, at_most=2**20)
    context: tuple[int, ...] | None = setting(
        None, "context of the longest decode row, as [1024,8192]", at_least=1, at_most=2**31 - 1
    )
    prefill: tuple[int, ...] | None = setting(
        None, "causal prefill of one prompt of so many tokens; [] for none", at_least=1, at_most=2**31 - 1
    )
    lengths: tuple[Lengths, ...] = setting(
        ("uniform", "ragged"), "contexts of the decode rows: uniform, or ragged from a tenth of the longest up"
    )
    heads: tuple[str, ...] | None = setting(None, "query heads/kv heads/head dim, as [32/8/128]")
    block_sizes: tuple[int, ...] | None = setting(None, "null: cache.block_size", at_least=1, at_most=MAX_BLOCK_SIZE)
    dtypes: tuple[str, ...] | None = setting(None, "dtypes of the queries")
    kv_dtype: tuple[str | None, ...] = setting(
        (None,), "dtypes of the pool, as [null,float8_e4m3fn]; null: that of the queries"
    )
    budget_s: float = setting(1.0, "seconds, about, to time one cell", above=0, at_most=10**9)
