"""Paged attention by flash-attn 2, 3 or 4."""

# Shapes: T query tokens (packed)  B rows  M blocks a table row  H query heads  D head dim

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from framework.errors import Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, Capabilities, LayerKV

from framework_flash_attn import versions

if TYPE_CHECKING:
    from torch import Tensor


class FlashAttnBackend(AttentionBackend):
    """The installed flash-attn that can serve the shapes, through its own paged interface.

    Args:
        version: "2", "3" or "4"; "auto" takes the first of 3, 4, 2 without a reason against it.

    Source: Dao et al., github.com/Dao-AILab/flash-attention, flash_attn_interface.py and hopper/, cute/interface.py.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float16", "bfloat16"}),
        devices=frozenset({"cuda"}),
        head_dims=frozenset(range(32, 257, 32)),
        features=frozenset({"sliding_window", "soft_cap", "lse"}),
        graph_safe=True,
    )

    def __init__(self, version: Literal["auto", "2", "3", "4"] = "auto") -> None:
        self._wanted = version
        self._kernels: Any = None

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        """Reasons of the shapes and the device; then, unless some version has none, those of every version asked."""
        reasons = self.capabilities.reasons_against(spec, device)
        capability = self._capability(device, reasons)
        by_version = {version: versions.reasons_against(version, spec, capability) for version in self._versions()}
        if all(by_version.values()):
            reasons += [f"version {version}: {reason}" for version, against in by_version.items() for reason in against]
        return reasons

    def setup(self, spec: AttentionSpec, device: str) -> None:
        """Choose and import the version."""
        super().setup(spec, device)
        capability = self._capability(device, [])
        chosen = [v for v in self._versions() if not versions.reasons_against(v, spec, capability)]
        self._kernels = load(chosen[0])(spec)

    def plan(self, batch: Batch) -> None:
        """What version 2 wants beside the batch, and version 3's schedule; nothing for version 4."""
        self._ready().plan(batch)

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        """One call, or two in version 2: decode rows and chunks."""
        import torch

        self.require(q, pool, batch, out, lse)
        kernels = self._ready()
        if len(q) == 0:
            return
        with torch.no_grad():
            attended, sums = kernels.attend(q, pool, batch, lse is not None)
            out.copy_(attended)
            if lse is not None:
                lse.copy_(torch.where(sums.isposinf(), -math.inf, sums))  # an empty row's, in flash-attn

    def _versions(self) -> tuple[str, ...]:
        return versions.ORDER if self._wanted == "auto" else (self._wanted,)

    def _capability(self, device: str, reasons: list[str]) -> tuple[int, int] | None:
        """The chip's; adds a reason where there is none. Asks the driver only when nothing else is against it."""
        if device.split(":")[0] != "cuda" or reasons:
            return None
        import torch

        if not torch.cuda.is_available():
            reasons.append("no CUDA device")
            return None
        return torch.cuda.get_device_capability(device)

    def _ready(self) -> Any:
        if self._kernels is None:
            raise Unsupported("FlashAttnBackend was not set up; call setup(spec, device) first")
        return self._kernels


def load(version: str) -> type:
    """The calls of one version; imports it.

    Raises:
        ImportError: it is installed and broken.
    """
    from framework_flash_attn import calls

    return {"2": calls.Version2, "3": calls.Version3, "4": calls.Version4}[version]
