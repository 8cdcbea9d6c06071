"""Hugging Face's config.json as a ModelConfig: every value of its type, every feature known or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.errors import ModelError
from framework.model.config import FAMILIES, ROPE_TYPES, ModelConfig, RopeScaling

_LARGEST_INTEGER = 2**31 - 1


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json, of transformers 4 (`rope_scaling`) or 5 (`rope_parameters`).

    Raises:
        ModelError: a family or a feature outside what is supported, a key that is missing, or a value of another type;
            each by name.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"model family {_short(family)} is not supported; supported: {', '.join(FAMILIES)}")
    _refuse_unknown_features(config)
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    theta, scaling = _rope(config)
    llama_bias = _flag(config, "attention_bias")
    return ModelConfig(
        family=family,
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=_integer(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_integer(config, "num_key_value_heads", heads),
        head_dim=_integer(config, "head_dim", 128 if family == "qwen3" else max(1, hidden // heads)),
        intermediate_size=_integer(config, "intermediate_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6),
        tie_word_embeddings=_flag(config, "tie_word_embeddings"),
        attention_bias=family == "qwen2" or (llama_bias and family != "mistral"),
        output_bias=llama_bias and family in ("llama", "qwen3"),
        mlp_bias=_flag(config, "mlp_bias") and family == "llama",
        qk_norm=family == "qwen3",
        max_position_embeddings=_integer(config, "max_position_embeddings", 2048),
        sliding_window=_sliding_window(config),
        bos_token_id=next(iter(token_ids(config, "bos_token_id")), None),
        eos_token_ids=token_ids(config, "eos_token_id"),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")[:60],
    )


def token_ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A field of token ids, which is null, an integer or a list, as a tuple.

    Raises:
        ModelError: anything else.
    """
    value = config.get(key)
    found = () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for token in found:
        if not _is_integer(token) or not 0 <= token <= _LARGEST_INTEGER:
            raise _wrong(key, "a token id, a list of them or null", value)
    return found


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(key: str, rule: str, value: Any) -> ModelError:
    return ModelError(f"config.json: '{key}' must be {rule}, found {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _integer(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """At least 1. Absent or null: `default`, if there is one."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"config.json has no '{key}', which a {config.get('model_type')} model needs")
        return default
    if not _is_integer(value) or not 1 <= value <= _LARGEST_INTEGER:
        raise _wrong(key, f"an integer of at least 1 and at most {_LARGEST_INTEGER:,}", value)
    return int(value)


def _number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Above 0. Absent or null: `default`."""
    value = config.get(key)
    value = default if value is None else value
    if value is None or not (isinstance(value, float) or _is_integer(value)) or not 0 < value < 1e300:
        raise _wrong(key, "a number above 0", value)
    return float(value)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return bool(value)


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise _wrong(key, "an object", value)
    return value or {}


def _refuse_unknown_features(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"hidden_act {_short(activation)} is not supported; supported: silu")
    if config.get("quantization_config"):
        method = _object(config, "quantization_config").get("quant_method", "unknown")
        raise ModelError(f"quantised weights ({_short(method)}) are not supported; use the unquantised checkpoint")
    _refuse_partial_rotation(config)


def _refuse_partial_rotation(config: Mapping[str, Any]) -> None:
    if config.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
        raise ModelError(
            f"partial_rotary_factor {_short(config['partial_rotary_factor'])} is not supported; supported: 1.0"
        )


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    parameters = _object(config, "rope_parameters") or _object(config, "rope_scaling")
    theta = _number(parameters, "rope_theta", _number(config, "rope_theta", 10_000.0))
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelError(f"rope scaling {_short(kind)} is not supported; supported: {', '.join(ROPE_TYPES)}")
    _refuse_partial_rotation(parameters)
    if kind == "default":
        return theta, None
    known = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    needed = ("factor", *known) if kind == "llama3" else ("factor",)
    for key in needed:
        if key not in parameters:
            raise ModelError(f"rope scaling '{kind}' needs '{key}', which config.json does not give")
    extra: dict[str, Any] = {}
    if kind == "llama3":
        extra = {key: _number(parameters, key) for key in known[:2]}
        extra[known[2]] = _integer(parameters, known[2])
        if extra["low_freq_factor"] >= extra["high_freq_factor"]:
            raise ModelError("rope scaling 'llama3': low_freq_factor must be below high_freq_factor")
    return theta, RopeScaling(kind=kind, factor=_number(parameters, "factor"), **extra)


def _sliding_window(config: Mapping[str, Any]) -> int | None:
    """The window if every layer has it, None if no layer has; a mixture is refused."""
    family = config.get("model_type")
    if config.get("sliding_window") is None or family == "llama":
        return None
    window = _integer(config, "sliding_window")
    if family not in ("qwen2", "qwen3"):
        return window
    if not _flag(config, "use_sliding_window"):
        return None
    kinds = config.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise _wrong("layer_types", "a list", kinds)
    if kinds:
        slides = [kind == "sliding_attention" for kind in kinds]
        if any(kind not in ("sliding_attention", "full_attention") for kind in kinds):
            raise _wrong("layer_types", "a list of sliding_attention and full_attention", kinds)
        every, none = all(slides), not any(slides)
    else:  # layers from max_window_layers on have the window
        first, layers = config.get("max_window_layers", 28), _integer(config, "num_hidden_layers")
        if not _is_integer(first) or first < 0:
            raise _wrong("max_window_layers", "an integer of at least 0", first)
        every, none = first == 0, first >= layers
    if not every and not none:
        raise ModelError("layers with and without a sliding window in one model are not supported")
    return window if every else None
