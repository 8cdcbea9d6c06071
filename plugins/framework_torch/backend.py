"""The default backend: its options and what it can do. What it does is in `attention`, imported by `setup`.

A replay composes its configuration from this class and never imports torch, which takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from framework.errors import InvalidArgument
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, Capabilities, LayerKV

if TYPE_CHECKING:
    from torch import Tensor


class TorchBackend(AttentionBackend):
    """Vectorised over rows of like length; never materialises repeated heads; memory bounded whatever the context.

    A tile's K and V are gathered token by token through the block tables into a reused buffer that stays in the
    cache, and attended with SDPA. Longer rows, and what SDPA cannot do (soft-cap, sinks, ALiBi, log-sum-exp, fp8
    pools), go chunk by chunk with a running maximum, in fp32.

    On a CPU, decode rows may instead go to loops compiled by inductor, which read the pool once and copy nothing:
    about twice as fast, after some 10 s of compiling (1 or 2 s when torch's cache on disk has it). `facts` says which.

    Args:
        compile: "auto": once a step's decode reads 16 MiB of KV a layer, if there is a C++ compiler; True: always, and
            already in `setup`; False: never. fp8 pools and latent caches are read by the eager path in any case.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        kv_dtypes=frozenset({"float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"}),
        devices=frozenset({"cpu", "cuda"}),
        layouts=frozenset({"NHD", "HND"}),
        features=frozenset({"sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi", "latent", "lse"}),
    )

    tile_bytes: ClassVar[int] = 8 * 2**20
    """KV gathered at once for decode rows, and by the running-maximum path; about a core's share of the last cache."""
    prefill_bytes: ClassVar[int] = 64 * 2**20
    """KV of one row gathered at once for a prefill chunk."""

    def __init__(self, compile: bool | Literal["auto"] = "auto") -> None:
        if compile not in (True, False, "auto"):
            raise InvalidArgument(f"compile must be true, false or auto, found {compile!r}")
        self.compile = compile

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        """With compile=True also why compiling is impossible, such as a missing C++ compiler."""
        reasons = self.capabilities.reasons_against(spec, device)
        if self.compile is not True:
            return reasons
        from framework_torch import compiled

        return reasons + compiled.reasons_against(device)

    def facts(self) -> dict[str, str | int | float]:
        """`decode`: "eager", "compiled" or "eager and compiled"; `compile_s`; `not_compiled`: why not, if tried."""
        return self._attention.facts()

    def setup(self, spec: AttentionSpec, device: str) -> None:
        from framework_torch.attention import TorchAttention

        super().setup(spec, device)
        self._attention = TorchAttention(
            spec, device, compile=self.compile, tile_bytes=self.tile_bytes, prefill_bytes=self.prefill_bytes
        )

    def plan(self, batch: Batch) -> None:
        """Cut the batch into tiles, and into chunks for the compiled decode; may compile, once."""
        self._attention.plan(batch)

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        self.require(q, pool, batch, out, lse)
        self._attention.attend(q, pool, batch, out, lse)
