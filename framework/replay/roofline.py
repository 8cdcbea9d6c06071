"""Duration of a step on a named device with a named model, if it ran at the hardware's limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.rows import IntArray, Rows
from framework.errors import ConfigError
from framework.replay.shapes import ROOFLINE_SHAPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device's ceilings. `source` says whether they were measured or are a vendor's."""

    bytes_per_s: float
    flops_per_s: float
    source: str


DEVICES = {
    "h200": Device(bytes_per_s=4.3e12, flops_per_s=790e12, source="measured: device copy, bf16 matrix product"),
    "h100": Device(bytes_per_s=3.35e12, flops_per_s=989e12, source="vendor: H100 SXM specification, dense bf16"),
    "a100": Device(bytes_per_s=2.04e12, flops_per_s=312e12, source="vendor: A100 80GB SXM specification, dense bf16"),
    "l40s": Device(bytes_per_s=0.864e12, flops_per_s=362e12, source="vendor: L40S specification, dense bf16"),
}

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
_KV_BYTES = {**_BYTES, "float64": 8, "int8": 1}
_INT8_SCALE_BYTES = 4


class Roofline:
    """Seconds a step takes: the larger of bytes over bandwidth and operations over rate, plus a fixed overhead.

    Bytes: the weights that its tokens touch once, K and V of every row's context once, K and V of the new tokens
    written. Operations: two an active weight and token, and attention's for each (query, key) pair. Weights and heads
    are spread evenly over the devices; communication and kernel inefficiency are in `efficiency`, which scales both
    ceilings.

    Args:
        device: a name in DEVICES.
        shape: a name in framework.replay.shapes.ROOFLINE_SHAPES.
        dtype: of weights, and of K and V without `kv_dtype`.
        kv_dtype: of K and V; int8 has a scale of 4 bytes for each token's vector. None: `dtype`.
        efficiency: reached share of the ceilings, 0 to 1. Calibrate it with a kernel run.
        overhead_s: fixed seconds a step.
        num_devices: devices that share the model, each with these ceilings.
        window: tokens that every layer sees, the own one included; None: all before.
    """

    def __init__(
        self,
        *,
        device: str = "h200",
        shape: str = "llama-3.1-8b",
        dtype: str = "bfloat16",
        kv_dtype: str | None = None,
        efficiency: float = 0.8,
        overhead_s: float = 0.0005,
        num_devices: int = 1,
        window: int | None = None,
    ) -> None:
        named: tuple[tuple[str, str, Collection[str]], ...] = (
            ("replay.device", device, DEVICES),
            ("replay.shape", shape, ROOFLINE_SHAPES),
            ("replay.dtype", dtype, _BYTES),
            ("cache.kv_dtype", kv_dtype or dtype, _KV_BYTES),
        )
        for what, name, known in named:
            if name not in known:
                raise ConfigError(f"{what} {name!r} is unknown; known: {', '.join(known)}")
        if not 0 < efficiency <= 1:
            raise ConfigError(f"replay.efficiency must be above 0 and at most 1, found {efficiency}")
        if overhead_s < 0:
            raise ConfigError(f"overhead_s must be at least 0, found {overhead_s}")
        if num_devices < 1:
            raise ConfigError(f"replay.num_devices must be at least 1, found {num_devices}")
        self._window = window
        self.shape = model = ROOFLINE_SHAPES[shape]
        self._bandwidth = DEVICES[device].bytes_per_s * efficiency * num_devices
        self._rate = DEVICES[device].flops_per_s * efficiency * num_devices
        self._overhead_s = overhead_s
        self._weight_size = _BYTES[dtype]
        self._flops_per_token = 2.0 * model.active_parameters
        stored = kv_dtype or dtype
        scales = _INT8_SCALE_BYTES * model.kv_vectors_per_token if stored == "int8" else 0
        self._kv_bytes = model.num_layers * (_KV_BYTES[stored] * model.kv_numbers_per_token + scales)
        self._pair_flops = float(model.pair_flops_per_head * model.num_heads * model.num_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return self._kv_bytes

    def __call__(self, step: Step, rows: Rows) -> float:
        """Seconds for `step`."""
        return self._seconds_of(step.num_new, step.computed)

    def prefill_s(self, cached: int, tokens: int) -> float:
        """Seconds to compute a prompt's tokens from number `cached` up to `tokens`, alone on the device."""
        return self._seconds_of(np.array([tokens - cached]), np.array([cached])) if tokens > cached else 0.0

    def _seconds_of(self, new: IntArray, before: IntArray) -> float:
        """Seconds to compute `new` tokens a row after the `before` tokens a row whose KV is there."""
        tokens, context = int(new.sum()), int((before + new).sum())
        pairs = float((new * before + new * (new + 1) // 2).sum())
        if self._window is not None:
            context -= int(np.maximum(0, before + 1 - self._window).sum())
            last, first = (np.maximum(0, count - self._window) for count in (before + new, before))
            pairs -= float((last * (last + 1) // 2 - first * (first + 1) // 2).sum())
        moved = self._weight_size * self.shape.weights_read(tokens) + self._kv_bytes * (context + tokens)
        work = self._flops_per_token * tokens + self._pair_flops * pairs
        return self._overhead_s + max(moved / self._bandwidth, work / self._rate)
