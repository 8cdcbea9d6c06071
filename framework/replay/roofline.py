"""Duration of a step on a named device with a named model, if it ran at the hardware's limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.rows import IntArray, Rows
from framework.errors import ConfigError
from framework.model.config import ModelConfig
from framework.model.shapes import SHAPES


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineShape:
    """What a step of a model moves and computes, for a roofline.

    Attributes:
        num_parameters: all weights.
        active_parameters: weights that one token is multiplied with; fewer than all where experts are routed.
        num_experts, experts_per_token: routed experts a layer, and how many of them a token takes; 1 and 1 without.
        num_layers, num_heads: of the decoder that have K and V; query heads.
        kv_numbers_per_token: numbers of K and V one token leaves in a layer's pool.
        kv_vectors_per_token: vectors that they are, each of which has a scale in an int8 pool.
        pair_flops_per_head: operations of one query head for one (query, key) pair: scores and weighted sum.
        source: where the numbers are from.
    """

    num_parameters: int
    active_parameters: int
    num_layers: int
    num_heads: int
    kv_numbers_per_token: int
    kv_vectors_per_token: int
    pair_flops_per_head: int
    num_experts: int = 1
    experts_per_token: int = 1
    source: str = ""

    @classmethod
    def of(cls, config: ModelConfig) -> RooflineShape:
        """The shape of a dense decoder without biases that the framework runs."""
        attention = _attention(len(config.attention_layers), config.num_heads, config.num_kv_heads, config.head_dim)
        hidden, source = config.hidden_size, "framework.model.shapes"
        heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        layer = hidden * (2 * heads + 2 * kv + 3 * config.intermediate_size + 2) + 2 * config.head_dim * config.qk_norm
        embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
        count = config.num_layers * layer + embeddings + hidden
        return cls(num_parameters=count, active_parameters=count, source=source, **attention)

    def weights_read(self, num_tokens: int) -> float:
        """Weights that a step of `num_tokens` reads, expected, with tokens routed independently and evenly.

        An expert is read once if any token takes it: with E experts of which a token takes k, a share of
        1 - (1 - k / E) ** num_tokens of them.
        """
        if self.num_experts == self.experts_per_token:
            return float(self.num_parameters)
        idle_share = 1 - self.experts_per_token / self.num_experts
        of_experts = (self.num_parameters - self.active_parameters) / idle_share  # what a token does not take is idle
        return self.num_parameters - of_experts * idle_share**num_tokens


def _attention(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, int]:
    return {
        "num_layers": num_layers,
        "num_heads": num_heads,
        "kv_numbers_per_token": 2 * num_kv_heads * head_dim,
        "kv_vectors_per_token": 2 * num_kv_heads,
        "pair_flops_per_head": 4 * head_dim,
    }


def _shape(
    parameters: float, attention: dict[str, int], source: str, active: float = 0.0, experts: tuple[int, int] = (1, 1)
) -> RooflineShape:
    """The shape of so many parameters, in billions; `active` where not all are. Experts: of a layer, and of a token."""
    return RooflineShape(
        num_parameters=round(parameters * 1e9),
        active_parameters=round((active or parameters) * 1e9),
        num_experts=experts[0],
        experts_per_token=experts[1],
        source=source,
        **attention,
    )


# Multi-head latent attention keeps 512 + 64 numbers a token and layer; a head's score takes all, its sum 512
# (arXiv 2412.19437, section 2.1.1).
_LATENT = {
    "num_layers": 61,
    "num_heads": 128,
    "kv_numbers_per_token": 576,
    "kv_vectors_per_token": 1,
    "pair_flops_per_head": 2 * 576 + 2 * 512,
}

ROOFLINE_SHAPES: dict[str, RooflineShape] = {name: RooflineShape.of(config) for name, config in SHAPES.items()} | {
    "llama-2-70b": _shape(68.98, _attention(80, 64, 8, 128), "arXiv 2307.09288; config.json"),
    "llama-3.1-70b": _shape(70.55, _attention(80, 64, 8, 128), "arXiv 2407.21783; config.json"),
    "llama-3.1-405b": _shape(405.85, _attention(126, 128, 8, 128), "arXiv 2407.21783; config.json"),
    "qwen2.5-72b": _shape(72.71, _attention(80, 64, 8, 128), "arXiv 2412.15115; config.json"),
    "mixtral-8x7b": _shape(46.70, _attention(32, 32, 8, 128), "arXiv 2401.04088; config.json", 12.88, (8, 2)),
    "qwen3-30b-a3b": _shape(30.53, _attention(48, 32, 4, 128), "arXiv 2505.09388; config.json", 3.34, (128, 8)),
    "qwen3-235b-a22b": _shape(235.1, _attention(94, 64, 4, 128), "arXiv 2505.09388; config.json", 22.2, (128, 8)),
    "gpt-oss-120b": _shape(116.8, _attention(36, 64, 8, 64), "arXiv 2508.10925", 5.13, (128, 4)),
    "deepseek-v3": _shape(671.0, _LATENT, "arXiv 2412.19437", 37.0, (256, 8)),
    # Of the PagedAttention paper's evaluation (arXiv 2309.06180, section 6.1): multi-head, no grouped queries.
    "opt-13b": _shape(12.85, _attention(40, 40, 40, 128), "arXiv 2205.01068"),
    "opt-66b": _shape(65.72, _attention(64, 72, 72, 128), "arXiv 2205.01068"),
    "opt-175b": _shape(174.6, _attention(96, 96, 96, 128), "arXiv 2205.01068"),
    "llama-13b": _shape(13.02, _attention(40, 40, 40, 128), "arXiv 2302.13971"),
}
"""Name -> shape. Mooncake's tables (arXiv 2407.00079) are for a dummy model of llama-2-70b's shape."""


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

_KV_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
_WEIGHT_BYTES = 2
_INT8_SCALE_BYTES = 4


class Roofline:
    """Seconds a step takes in bfloat16: the larger of bytes over bandwidth and operations over rate, and an overhead.

    Bytes: the weights that its tokens touch once, K and V of every row's context once, K and V of the new tokens
    written. Operations: two an active weight and token, and attention's for each (query, key) pair. Weights and heads
    are spread evenly over the devices; communication and kernel inefficiency are in `efficiency`, which scales both
    ceilings.

    Args:
        device: a name in DEVICES.
        shape: a name in framework.replay.roofline.ROOFLINE_SHAPES.
        kv_dtype: of K and V; int8 has a scale of 4 bytes for each token's vector. None: bfloat16, as the weights.
        efficiency: reached share of the ceilings, 0 to 1. Calibrate it with a kernel run.
        overhead_s: fixed seconds a step.
        num_devices: devices that share the model, each with these ceilings.
    """

    def __init__(
        self,
        *,
        device: str = "h200",
        shape: str = "llama-3.1-8b",
        kv_dtype: str | None = None,
        efficiency: float = 0.8,
        overhead_s: float = 0.0005,
        num_devices: int = 1,
    ) -> None:
        stored = kv_dtype or "bfloat16"
        named: tuple[tuple[str, str, Collection[str]], ...] = (
            ("replay.device", device, DEVICES),
            ("replay.shape", shape, ROOFLINE_SHAPES),
            ("cache.kv_dtype", stored, _KV_BYTES),
        )
        for what, name, known in named:
            if name not in known:
                raise ConfigError(f"{what} {name!r} is unknown; known: {', '.join(known)}")
        self.shape = model = ROOFLINE_SHAPES[shape]
        self._bandwidth = DEVICES[device].bytes_per_s * efficiency * num_devices
        self._rate = DEVICES[device].flops_per_s * efficiency * num_devices
        self._overhead_s = overhead_s
        self._flops_per_token = 2.0 * model.active_parameters
        scales = _INT8_SCALE_BYTES * model.kv_vectors_per_token if stored == "int8" else 0
        self._kv_bytes = model.num_layers * (_KV_BYTES[stored] * model.kv_numbers_per_token + scales)
        self._pair_flops = float(model.pair_flops_per_head * model.num_heads * model.num_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return self._kv_bytes

    def __call__(self, step: Step, rows: Rows) -> float:
        return self._seconds_of(step.num_new, step.computed)

    def prefill_s(self, cached: int, tokens: int) -> float:
        """Seconds to compute a prompt's tokens from number `cached` up to `tokens`, alone on the device."""
        return self._seconds_of(np.array([tokens - cached]), np.array([cached])) if tokens > cached else 0.0

    def _seconds_of(self, new: IntArray, before: IntArray) -> float:
        """Seconds to compute `new` tokens a row after the `before` tokens a row whose KV is there."""
        tokens, context = int(new.sum()), int((before + new).sum())
        pairs = float((new * before + new * (new + 1) // 2).sum())
        moved = _WEIGHT_BYTES * self.shape.weights_read(tokens) + self._kv_bytes * (context + tokens)
        work = self._flops_per_token * tokens + self._pair_flops * pairs
        return self._overhead_s + max(moved / self._bandwidth, work / self._rate)
