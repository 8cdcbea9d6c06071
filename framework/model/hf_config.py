"""Hugging Face's config.json as a ModelConfig: every value of its type, every feature known or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from framework.errors import ModelError
from framework.model.config import (
    FAMILIES,
    LARGEST,
    ROPE_TYPES,
    ExpertsConfig,
    ModelConfig,
    RecurrentConfig,
    RopeScaling,
)

_LARGEST_INTEGER = 2**31 - 1
_GEMMA = ("gemma2", "gemma3_text")
_HEAD_DIMS = {"qwen3": 128, "gemma2": 256, "gemma3_text": 256, "gpt_oss": 64, "qwen3_5_text": 256}
"""By family, where config.json may leave it out; elsewhere hidden_size / heads."""
_WHOLE_BIAS = ("llama", "qwen3", "qwen3_moe", "gpt_oss", "qwen3_5_text", *_GEMMA)
"""`attention_bias` means the output projection too."""
_THETAS = {"gemma3_text": 1e6, "gpt_oss": 150_000.0, "mixtral": 1e6}


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json, of transformers 4 (`rope_scaling`) or 5 (`rope_parameters`).

    Raises:
        ModelError: a family or a feature outside what is supported, a key that is missing, or a value of another type;
            each by name.
    """
    if config.get("model_type") == "qwen3_5":  # with a vision tower, whose text alone is read
        config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **_object(config, "text_config")}
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"model family {_short(family)} is not supported; supported: {', '.join(FAMILIES)}")
    _refuse_unknown_features(config)
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    theta, scaling = _rope(config)
    llama_bias = _flag(config, "attention_bias") or (family == "gpt_oss" and config.get("attention_bias") is None)
    gemma, experts = family in _GEMMA, _experts(config)
    window, sliding = _sliding_window(config)
    return ModelConfig(
        family=family,
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=_num_layers(config),
        num_heads=heads,
        num_kv_heads=_integer(config, "num_key_value_heads", heads),
        head_dim=_integer(config, "head_dim", _HEAD_DIMS.get(family, max(1, hidden // heads))),
        intermediate_size=_integer(config, "intermediate_size") if experts is None else experts.intermediate_size,
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6),
        tie_word_embeddings=_flag(config, "tie_word_embeddings", gemma),
        attention_bias=family == "qwen2" or (llama_bias and family in _WHOLE_BIAS),
        output_bias=llama_bias and family in _WHOLE_BIAS,
        mlp_bias=_flag(config, "mlp_bias") and family == "llama",
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3_text", "qwen3_5_text"),
        max_position_embeddings=_integer(config, "max_position_embeddings", 2048),
        sliding_window=window,
        sliding_layers=sliding,
        local_rope_theta=_local_theta(config),
        attention_scale=_number(config, "query_pre_attn_scalar", 256) ** -0.5 if gemma else None,
        soft_cap=_cap(config, "attn_logit_softcapping", 50.0),
        logit_cap=_cap(config, "final_logit_softcapping", 30.0),
        activation="gelu_tanh" if gemma else "silu",
        norms_plus_one=gemma or family == "qwen3_5_text",
        sandwich_norms=gemma,
        scaled_embeddings=gemma,
        sinks=family == "gpt_oss",
        experts=experts,
        recurrent=_recurrent(config),
        rotary_dim=_rotary_dim(config),
        output_gate=family == "qwen3_5_text",
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


def _num_layers(config: Mapping[str, Any]) -> int:
    layers = _integer(config, "num_hidden_layers")
    if layers > LARGEST["num_layers"]:
        raise ModelError(
            f"num_layers must be at most {LARGEST['num_layers']:,}, found {layers:,}; is config.json damaged?"
        )
    return layers


def _number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Above 0. Absent or null: `default`."""
    value = config.get(key)
    value = default if value is None else value
    if value is None or not (isinstance(value, float) or _is_integer(value)) or not 0 < value < 1e300:
        raise _wrong(key, "a number above 0", value)
    return float(value)


def _flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return default if value is None else bool(value)


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise _wrong(key, "an object", value)
    return value or {}


def _refuse_unknown_features(config: Mapping[str, Any]) -> None:
    gemma = config.get("model_type") in _GEMMA
    key, known = ("hidden_activation", ("gelu_pytorch_tanh",)) if gemma else ("hidden_act", ("silu", "swish"))
    activation = config.get(key, known[0]) or known[0]
    if activation not in known:
        raise ModelError(f"{key} {_short(activation)} is not supported; supported: {known[0]}")
    if gemma and config.get("use_bidirectional_attention"):
        raise ModelError("use_bidirectional_attention is not supported; supported: false")
    if config.get("quantization_config"):
        method = _object(config, "quantization_config").get("quant_method", "unknown")
        raise ModelError(f"quantised weights ({_short(method)}) are not supported; use the unquantised checkpoint")
    _refuse_partial_rotation(config, config.get("model_type"))


def _refuse_partial_rotation(config: Mapping[str, Any], family: object) -> None:
    if family != "qwen3_5_text" and config.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
        raise ModelError(
            f"partial_rotary_factor {_short(config['partial_rotary_factor'])} is not supported; supported: 1.0"
        )


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    parameters = _object(config, "rope_parameters") or _object(config, "rope_scaling")
    if "full_attention" in parameters:
        parameters = _object(parameters, "full_attention")
    default = _THETAS.get(str(config.get("model_type")), 10_000.0)
    theta = _number(parameters, "rope_theta", _number(config, "rope_theta", default))
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelError(f"rope scaling {_short(kind)} is not supported; supported: {', '.join(ROPE_TYPES)}")
    _refuse_partial_rotation(parameters, config.get("model_type"))
    if kind == "default":
        return theta, None
    if kind == "yarn":
        return theta, _yarn(parameters)
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


def _yarn(parameters: Mapping[str, Any]) -> RopeScaling:
    """YaRN's numbers, with the factor of cos and sin that transformers would infer where none is given."""
    for key in ("factor", "original_max_position_embeddings"):
        if parameters.get(key) is None:
            raise ModelError(f"rope scaling 'yarn' needs '{key}', which config.json does not give")
    factor = _number(parameters, "factor")
    given, scale, whole = (parameters.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is not None:
        attention = _number(parameters, "attention_factor")
    elif scale and whole:
        attention = _growth(factor, _number(parameters, "mscale")) / _growth(
            factor, _number(parameters, "mscale_all_dim")
        )
    else:
        attention = _growth(factor, 1.0)
    fast, slow = (_number(parameters, key, default) for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    if slow > fast:
        raise ModelError(f"rope scaling 'yarn': beta_slow {slow} must not be above beta_fast {fast}")
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=_integer(parameters, "original_max_position_embeddings"),
        beta_fast=fast,
        beta_slow=slow,
        truncate=_flag(parameters, "truncate", True),
        attention_factor=attention,
    )


def _growth(factor: float, scale: float) -> float:
    """Source: arXiv:2309.00071 section 3.4."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _local_theta(config: Mapping[str, Any]) -> float | None:
    """Gemma 3: the rotary base of the layers with a window."""
    if config.get("model_type") != "gemma3_text":
        return None
    parameters = _object(_object(config, "rope_parameters"), "sliding_attention")
    kind = parameters.get("rope_type") or "default"
    if kind != "default":
        raise ModelError(f"rope scaling {_short(kind)} of sliding layers is not supported; supported: default")
    return _number(parameters, "rope_theta", _number(config, "rope_local_base_freq", 10_000.0))


def _cap(config: Mapping[str, Any], key: str, default: float) -> float | None:
    """Gemma's soft caps: null is none; Gemma 2 has them also where config.json leaves them out."""
    family = config.get("model_type")
    if family not in _GEMMA or (key in config and config[key] is None) or (family != "gemma2" and key not in config):
        return None
    return _number(config, key, default)


def _experts(config: Mapping[str, Any]) -> ExpertsConfig | None:
    """Routed experts of Mixtral, Qwen3-MoE and gpt-oss; layers without them among others are refused."""
    family = config.get("model_type")
    if family not in ("mixtral", "qwen3_moe", "gpt_oss"):
        return None
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ModelError("layers with and without routed experts in one model are not supported")
    key = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    if family == "gpt_oss":
        limit, alpha = config.get("swiglu_limit", 7.0), config.get("swiglu_alpha", 1.702)
        if (limit, alpha) != (7.0, 1.702):
            raise ModelError(
                f"swiglu_limit {_short(limit)} and swiglu_alpha {_short(alpha)} are not supported; 7, 1.702"
            )
    width = "moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size"
    return ExpertsConfig(
        count=_integer(config, key),
        per_token=_integer(config, "num_experts_per_tok"),
        intermediate_size=_integer(config, width),
        renormalise=family != "qwen3_moe" or _flag(config, "norm_topk_prob"),
        bias=family == "gpt_oss",
        clamped=family == "gpt_oss",
    )


def _rotary_dim(config: Mapping[str, Any]) -> int | None:
    """Qwen3.5 rotates a quarter of each head, unless it says otherwise."""
    if config.get("model_type") != "qwen3_5_text":
        return None
    share = _number(_object(config, "rope_parameters"), "partial_rotary_factor",
                    _number(config, "partial_rotary_factor", 0.25))  # fmt: skip
    return int(share * _integer(config, "head_dim", _HEAD_DIMS["qwen3_5_text"]))


def _recurrent(config: Mapping[str, Any]) -> RecurrentConfig | None:
    """Qwen3.5: the layers of linear attention; every fourth attends to all tokens where `layer_types` is left out."""
    if config.get("model_type") != "qwen3_5_text":
        return None
    kinds, count = config.get("layer_types"), _num_layers(config)
    if kinds is None:
        every = _integer(config, "full_attention_interval", 4)
        kinds = ["full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(count)]
    known = isinstance(kinds, list) and all(kind in ("linear_attention", "full_attention") for kind in kinds)
    if not known or len(kinds) != count:
        raise _wrong("layer_types", f"a list of {count} of linear_attention and full_attention", kinds)
    return RecurrentConfig(
        layers=tuple(kind == "linear_attention" for kind in kinds),
        num_key_heads=_integer(config, "linear_num_key_heads", 16),
        num_value_heads=_integer(config, "linear_num_value_heads", 32),
        key_dim=_integer(config, "linear_key_head_dim", 128),
        value_dim=_integer(config, "linear_value_head_dim", 128),
        kernel=_integer(config, "linear_conv_kernel_dim", 4),
    )


def _sliding_window(config: Mapping[str, Any]) -> tuple[int | None, tuple[bool, ...] | None]:
    """The window, and which layers have it (None: all); no window where no layer has it."""
    family = str(config.get("model_type"))
    default = {"gemma2": 4096, "gemma3_text": 4096, "gpt_oss": 128}.get(family)
    if family in ("llama", "qwen3_5_text") or (
        config.get("sliding_window") is None and ("sliding_window" in config or not default)
    ):
        return None, None
    window = _integer(config, "sliding_window", default)
    if family in ("qwen2", "qwen3", "qwen3_moe") and not _flag(config, "use_sliding_window"):
        return None, None
    if family in ("mistral", "mixtral", "phi3", "qwen3_moe"):
        return window, None
    slides = _sliding_layers(config, family)
    if all(slides):
        return window, None
    return (window, tuple(slides)) if any(slides) else (None, None)


def _sliding_layers(config: Mapping[str, Any], family: str) -> list[bool]:
    """One flag a layer: `layer_types`, or the family's rule where config.json leaves them out."""
    kinds, layers = config.get("layer_types"), _num_layers(config)
    if kinds is not None and not isinstance(kinds, list):
        raise _wrong("layer_types", "a list", kinds)
    if kinds:
        if any(kind not in ("sliding_attention", "full_attention") for kind in kinds):
            raise _wrong("layer_types", "a list of sliding_attention and full_attention", kinds)
        if len(kinds) != layers:
            raise _wrong("layer_types", f"a list of {layers} kinds, one a layer", kinds)
        return [kind == "sliding_attention" for kind in kinds]
    if family in ("gemma2", "gpt_oss"):
        return [layer % 2 == 0 for layer in range(layers)]
    if family == "gemma3_text":
        every = _integer(config, "sliding_window_pattern", _integer(config, "_sliding_window_pattern", 6))
        return [(layer + 1) % every != 0 for layer in range(layers)]
    first = config.get("max_window_layers", 28)  # layers from there on have the window
    if not _is_integer(first) or first < 0:
        raise _wrong("max_window_layers", "an integer of at least 0", first)
    return [layer >= first for layer in range(layers)]
