"""Scales of an fp8 KV pool: one for K and one for V of each layer and kv head, given in a file or calibrated."""

# Shapes: L layers  K kv heads of the whole model

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from framework.engine.pool import KVPool
from framework.errors import ConfigError
from framework.files.jsonl import read_object
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.dense import DenseCache

SCALED = "float8_e4m3fn"

_CALIBRATION_TOKENS = 512
_HEADROOM = 2.0
"""The largest magnitude seen is stored as 448 / 2: e4m3 has the same relative precision there, and what comes to twice
as much is still not cut off."""


def require_scales(path: str | None, kv_dtype: str | None, config: ModelConfig) -> None:
    """Raise unless a file of scales, if there is one, is wanted and fits the model. Reads no weight.

    Raises:
        ConfigError: scales for a pool that has none, or a file that cannot be read or is of another shape.
    """
    if path is None:
        return
    if kv_dtype != SCALED:
        raise ConfigError(
            f"cache.kv_scales is for cache.kv_dtype={SCALED}, found kv_dtype={kv_dtype or config.dtype}; set it to null"
        )
    read_scales(path, config)


def read_scales(path: str, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """The scales of K and V, each (L, K) float32, of a JSON file {"k": [[...], ...], "v": [[...], ...]}.

    Raises:
        ConfigError: unreadable, of another shape, or a scale that is not finite and above 0.
    """
    try:
        found = read_object(path, ConfigError)
        pair = [torch.tensor(found[name], dtype=torch.float32) for name in ("k", "v")]
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError, OverflowError) as error:
        raise ConfigError(f"cache.kv_scales: '{path}' cannot be read as {{'k': rows, 'v': rows}}: {error!r}") from error
    asked = (len(config.attention_layers), config.num_kv_heads)
    for name, scales in zip("kv", pair, strict=True):
        if tuple(scales.shape) != asked:
            raise ConfigError(
                f"cache.kv_scales: '{name}' of '{path}' has shape {tuple(scales.shape)}, the model has {asked[0]} "
                f"layers of {asked[1]} kv heads"
            )
        if not bool(((scales > 0) & (scales < math.inf)).all()):
            raise ConfigError(f"cache.kv_scales: '{name}' of '{path}' has a scale that is not finite and above 0")
    return pair[0], pair[1]


def set_scales(pool: KVPool, decoder: Decoder, path: str | None) -> None:
    """Set the scales of an fp8 pool, this rank's heads, from a file or by a pass; any other pool stays as it is."""
    if pool.dtype != SCALED:
        return
    if path is None:
        calibrate(pool, decoder)
        return
    heads = torch.tensor(list(decoder.shard.kv_heads(decoder.config)))
    for scales, name in zip(read_scales(path, decoder.config), ("k_scale", "v_scale"), strict=True):
        for layer, layer_scales in zip(pool.layers, scales[:, heads], strict=True):
            setattr(layer, name, layer_scales.to(pool.device))


@torch.inference_mode()
def scales_name(pool: KVPool) -> str:
    """Equal for pools whose scales of float8_e4m3fn are equal; empty of another dtype."""
    if pool.dtype != "float8_e4m3fn":
        return ""
    scales = [scale for layer in pool.layers for scale in (layer.k_scale, layer.v_scale) if scale is not None]
    values = torch.cat([scale.float().cpu() for scale in scales]).numpy()
    return f"/{hashlib.sha256(values.tobytes()).hexdigest()}"


def calibrate(pool: KVPool, decoder: Decoder) -> None:
    """Scales from the largest magnitudes of one dense pass over 512 tokens, drawn uniformly with a fixed seed.

    Of a model over several ranks all must calibrate at once: the pass is computed together.
    """
    count = min(_CALIBRATION_TOKENS, decoder.config.max_position_embeddings)
    tokens = torch.randint(decoder.config.vocab_size, (count,), generator=torch.Generator().manual_seed(0))
    attention = DenseCache(decoder).attend
    kv_of = dict(zip(decoder.config.attention_layers, pool.layers, strict=True))

    def observed(layer: int, q: Tensor, *inputs: Any) -> Tensor:
        if (kv := kv_of.get(layer)) is not None:
            kv.k_scale = _scale(inputs[0])
            kv.v_scale = kv.k_scale if kv.is_latent else _scale(inputs[1])
        return attention(layer, q, *inputs)

    decoder(tokens.to(decoder.device), torch.arange(count, device=decoder.device), observed)


def _scale(values: Tensor) -> Tensor:
    """(K,) float32 of values (T, K, D); 1 for a head that is always 0."""
    largest = values.float().abs().amax((0, 2))
    scale = largest * (_HEADROOM / torch.finfo(torch.float8_e4m3fn).max)
    return torch.where(largest > 0, scale, torch.ones_like(scale))
