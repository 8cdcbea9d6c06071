"""The `replay` section of a configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What the `replay` section of a configuration may say.

    Attributes:
        step_s: seconds a step takes under `executor=none`.
        leaf_first, full_blocks_only: switches of `executor=cache_only`; see replay.reference.
        optimum: report the gap to the offline optimum under `executor=cache_only`; costs one more pass.
        capacity: the pool in place of cache.num_blocks: "40GiB" of K and V of `shape` and `dtype`, or, under
            `executor=cache_only`, "25%" of the trace's distinct blocks.
        slo_ttft_s, slo_tpot_s: objectives that a request must meet to count as goodput.
        device, shape, dtype, efficiency, overhead_s: of `executor=roofline`; see Roofline.
    """

    step_s: float = 0.025
    leaf_first: bool = False
    full_blocks_only: bool = False
    optimum: bool = True
    capacity: str | None = None
    slo_ttft_s: float = 2.0
    slo_tpot_s: float = 0.1
    device: str = "h200"
    shape: str = "llama-3.1-8b"
    dtype: str = "bfloat16"
    efficiency: float = 0.8
    overhead_s: float = 0.0005
