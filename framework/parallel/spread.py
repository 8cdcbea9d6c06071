"""Loading of a model over several ranks: `load_model` calls this to start the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.model.loading import ModelSource, Spread
    from framework.parallel.ranks import Ranks

TIMEOUT_S = 300.0
"""Seconds a rank may keep the others waiting: the first step may compile kernels."""


def spread_over(size: int, *, timeout_s: float = TIMEOUT_S) -> Spread | None:
    """The `spread` of `load_model` for `size` ranks, each a process and, on CUDA, a device; None for a single one.

    Args:
        timeout_s: seconds a rank may keep the others waiting, once it has loaded.

    Calling it raises what `Ranks.start` raises.
    """
    if size == 1:
        return None

    def start(source: ModelSource, device: str) -> Ranks:
        from framework.parallel.ranks import Ranks

        return Ranks.start(source, size, device, timeout_s)

    return start
