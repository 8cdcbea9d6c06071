"""Checkpoints of Hugging Face's layout: finding them, and config.json as a ModelConfig.

Every value is of its type, every feature known or refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from framework.errors import ModelError, shown
from framework.files.jsonl import read_object
from framework.model.config import (
    FAMILIES,
    LARGEST,
    ExpertsConfig,
    IndexConfig,
    LatentConfig,
    ModelConfig,
    RecurrentConfig,
    RopeScaling,
    RoutingConfig,
)
from framework.sampling import is_integer

T = TypeVar("T", int, float, bool, dict[str, Any])

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]
_LARGEST_INTEGER = 2**31 - 1
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_GEMMA = {"activation": "gelu_tanh", "norms_plus_one": True, "sandwich_norms": True}
_GROUPED = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite")  # experts by group
_LATENT = (*_GROUPED, "minicpm3")
_RECURRENT = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_QWEN_STATES: dict[str, Any] = {
    "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
_QWEN_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 10, "moe_intermediate_size": 512, "num_experts": 512,
                                 "shared_expert_intermediate_size": 512}  # fmt: skip

_DECODERS: dict[str, dict[str, Any]] = {
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA | {"qk_norm": True},
    "gpt_oss": {"sinks": True},
    **{family: {"qk_norm": True, "norms_plus_one": True, "output_gate": True} for family in _RECURRENT},
}
"""What the decoder of a family has, whatever config.json says."""

_DEEPSEEK: dict[str, Any] = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_group": 8, "topk_group": 4, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "n_shared_experts": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "first_k_dense_replace": 3,
    "rope_interleave": True,
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, Any]] = {
    "mixtral": {"rope_theta": 1e6},
    "qwen3": {"head_dim": 128},
    "gemma2": {"head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                    "rope_theta": 1e6},
    "gpt_oss": {"head_dim": 64, "attention_bias": True, "rope_theta": 150_000.0, "sliding_window": 128},
    "qwen3_5_text": _QWEN_STATES,
    "qwen3_5_moe_text": _QWEN_STATES | _QWEN_EXPERTS | {"num_experts_per_tok": 8, "num_experts": 256},
    "qwen3_next": _QWEN_STATES | _QWEN_EXPERTS | {"norm_topk_prob": True},
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK | {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
    "glm4_moe_lite": _DEEPSEEK | {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1,
                                  "topk_group": 1, "n_routed_experts": 64, "num_experts_per_tok": 4,
                                  "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8,
                                  "first_k_dense_replace": 1, "rms_norm_eps": 1e-5},
    "minicpm3": {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
                 "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-5,
                 "tie_word_embeddings": True},
}  # fmt: skip
"""What transformers assumes where a family's config.json leaves a key out."""

_NULL_IS_NONE = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "q_lora_rank", "scale_depth",
                 "dim_model_base")  # fmt: skip
"""Keys whose null says that there is none; elsewhere null leaves a key out."""

_WHOLE_BIAS = ("llama", "qwen3", "qwen3_moe", "gpt_oss", "gemma2", "gemma3_text", *_RECURRENT, *_LATENT)
"""`attention_bias` means the output projection too."""


def find_checkpoint(name_or_path: str | Path) -> Path:
    """The folder of a checkpoint: itself, or the local copy of a hub repository, downloaded if need be.

    Raises:
        ModelError: neither a folder nor a hub id, or the hub cannot be reached and holds no local copy.
    """
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"model '{name_or_path}' is a file; give the folder that holds config.json and *.safetensors")
    if not _HUB_ID.fullmatch(str(name_or_path)):
        raise ModelError(f"model '{name_or_path}' is no folder here and no hub id (OWNER/NAME); 'tiny' needs neither")
    return _download(str(name_or_path))


def read_config(folder: Path) -> ModelConfig:
    """The config of a checkpoint; generation_config.json, where there is one, says which tokens end a generation.

    Raises:
        ModelError: no config.json, or an unsupported family or feature.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{folder}' has no config.json: not a Hugging Face checkpoint")
    config = read_hf_config(read_object(folder / "config.json", ModelError))
    if (folder / "generation_config.json").is_file():
        ends = token_ids(read_object(folder / "generation_config.json", ModelError), "eos_token_id")
        config = replace(config, eos_token_ids=ends or config.eos_token_ids)
    return config


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"model '{name}' cannot be downloaded ({reason}); check the id, log in with `hf auth login` if it is "
            f"private, or run `hf download {name}` where there is a network"
        ) from error


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json, of transformers 4 (`rope_scaling`) or 5 (`rope_parameters`).

    Raises:
        ModelError: a family or a feature outside what is supported, a key that is missing, or a value of another type;
            each by name.
    """
    if config.get("model_type") in ("qwen3_5", "qwen3_5_moe"):  # with a vision tower, whose text alone is read
        text = value_of(config, "text_config", dict, {})
        config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **text}
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"model family {shown(family)} is not supported; supported: {', '.join(FAMILIES)}")
    config = with_defaults(config)
    _refuse_unknown_features(config)
    hidden, heads = value_of(config, "hidden_size", int), value_of(config, "num_attention_heads", int)
    theta, scaling = _rope(config)
    bias = value_of(config, "attention_bias", bool, False) and family in _WHOLE_BIAS
    experts = _experts(config)
    window, sliding = _sliding_window(config)
    facts: dict[str, Any] = {
        "family": family,
        "vocab_size": value_of(config, "vocab_size", int),
        "hidden_size": hidden,
        "num_layers": num_layers_of(config),
        "num_heads": heads,
        "num_kv_heads": value_of(config, "num_key_value_heads", int, heads),
        "head_dim": value_of(config, "head_dim", int, max(1, hidden // heads)),
        "intermediate_size": _intermediate_size(config, experts),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rms_norm_eps": value_of(config, "rms_norm_eps", float, 1e-6),
        "tie_word_embeddings": value_of(config, "tie_word_embeddings", bool, False),
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": value_of(config, "mlp_bias", bool, False) and family in ("llama", "minicpm3"),
        "max_position_embeddings": value_of(config, "max_position_embeddings", int, 2048),
        "sliding_window": window,
        "sliding_layers": sliding,
        "local_rope_theta": _local_theta(config),
        "experts": experts,
        "recurrent": _recurrent(config),
        "rotary_dim": _rotary_dim(config),
        "bos_token_id": next(iter(token_ids(config, "bos_token_id")), None),
        "eos_token_ids": token_ids(config, "eos_token_id"),
        "dtype": str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")[:60],
    }
    if family in ("gemma2", "gemma3_text"):
        facts["attention_scale"] = value_of(config, "query_pre_attn_scalar", float) ** -0.5
        for field, key in (("soft_cap", "attn_logit_softcapping"), ("logit_cap", "final_logit_softcapping")):
            facts[field] = None if config.get(key) is None else value_of(config, key, float)
        facts["embedding_scale"] = hidden**0.5
    if family in _LATENT:
        facts |= _latent(config)
    return ModelConfig(**facts | _DECODERS.get(family, {}))


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, and what transformers assumes where its family leaves a key out.

    Raises:
        ModelError: `text_config` is no object.
    """
    config = value_of(config, "text_config", dict, {}) or config
    given = {key: value for key, value in config.items() if value is not None or key in _NULL_IS_NONE}
    return {**_DEFAULTS.get(str(config.get("model_type")), {}), **given}


def token_ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A field of token ids, which is null, an integer or a list, as a tuple.

    Raises:
        ModelError: anything else.
    """
    value = config.get(key)
    found = () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for token in found:
        if not is_integer(token) or not 0 <= token <= _LARGEST_INTEGER:
            raise _wrong(key, "a token id, a list of them or null", value)
    return found


_RULES: dict[Any, str] = {
    int: f"an integer of at least 1 and at most {_LARGEST_INTEGER:,}",
    float: "a number above 0",
    bool: "true or false",
    dict: "an object",
}


def value_of(config: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """The value of a key by the rule of its kind. Left out or null: `default`, if there is one.

    Raises:
        ModelError: it is missing, or of another type or outside its bounds.
    """
    value: Any = config.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        owner = config.get("model_type") or config.get("rope_type") or config.get("type")
        needs = f", which '{owner}' needs" if isinstance(owner, str) else ""
        raise ModelError(f"config.json has no '{key}'{needs}")
    if kind is int:
        holds = is_integer(value) and 1 <= value <= _LARGEST_INTEGER
    elif kind is float:
        holds = (isinstance(value, float) or is_integer(value)) and 0 < value < 1e300
    else:
        holds = isinstance(value, kind)
    if not holds:
        raise _wrong(key, _RULES[kind], value)
    found: T = value if kind is dict else kind(value)
    return found


def _wrong(key: str, rule: str, value: Any) -> ModelError:
    return ModelError(f"config.json: '{key}' must be {rule}, found {shown(value)}")


def num_layers_of(config: Mapping[str, Any]) -> int:
    """How many layers the decoder has, few enough to be listed.

    Raises:
        ModelError: no such number.
    """
    layers = value_of(config, "num_hidden_layers", int)
    if layers > LARGEST["num_layers"]:  # before they are listed
        raise ModelError(
            f"num_layers must be at most {LARGEST['num_layers']:,}, found {layers:,}; is config.json damaged?"
        )
    return layers


def _refuse_unknown_features(config: Mapping[str, Any]) -> None:
    gemma = config["model_type"] in ("gemma2", "gemma3_text")
    key, known = ("hidden_activation", ("gelu_pytorch_tanh",)) if gemma else ("hidden_act", ("silu", "swish"))
    activation = config.get(key) or known[0]
    if activation not in known:
        raise ModelError(f"{key} {shown(activation)} is not supported; supported: {known[0]}")
    if gemma and config.get("use_bidirectional_attention"):
        raise ModelError("use_bidirectional_attention is not supported; supported: false")
    if config.get("quantization_config"):
        method = value_of(config, "quantization_config", dict).get("quant_method", "unknown")
        raise ModelError(f"quantised weights ({shown(method)}) are not supported; use the unquantised checkpoint")


def _rotary_dim(config: Mapping[str, Any]) -> int | None:
    """Qwen3-Next and 3.5 rotate a quarter of each head, unless they say otherwise; no other family a part."""
    in_part = config["model_type"] in _RECURRENT
    share = value_of(config, "partial_rotary_factor", float, 0.25 if in_part else 1.0)
    share = value_of(_rope_parameters(config), "partial_rotary_factor", float, share)
    if in_part:
        return int(share * value_of(config, "head_dim", int))
    if share != 1:
        raise ModelError(f"partial_rotary_factor {share} is not supported; supported: 1.0")
    return None


def _rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = value_of(config, "rope_parameters", dict, {}) or value_of(config, "rope_scaling", dict, {})
    return value_of(parameters, "full_attention", dict, parameters)


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    parameters = _rope_parameters(config)
    theta = value_of(parameters, "rope_theta", float, value_of(config, "rope_theta", float, 10_000.0))
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _ROPE_TYPES:
        raise ModelError(f"rope scaling {shown(kind)} is not supported; supported: {', '.join(_ROPE_TYPES)}")
    if kind == "default":
        return theta, None
    factor, extra = value_of(parameters, "factor", float), dict[str, Any]()
    if kind != "linear":
        extra["original_max_position_embeddings"] = value_of(parameters, "original_max_position_embeddings", int)
    if kind == "llama3":
        extra |= {key: value_of(parameters, key, float) for key in ("low_freq_factor", "high_freq_factor")}
        if extra["low_freq_factor"] >= extra["high_freq_factor"]:
            raise ModelError("rope scaling 'llama3': low_freq_factor must be below high_freq_factor")
    if kind == "yarn":
        extra |= {
            "beta_fast": value_of(parameters, "beta_fast", float, 32.0),
            "beta_slow": value_of(parameters, "beta_slow", float, 1.0),
            "truncate": value_of(parameters, "truncate", bool, True),
            "attention_factor": value_of(parameters, "attention_factor", float, _yarn_attention(parameters, factor)),
        }
        if extra["beta_slow"] > extra["beta_fast"]:
            raise ModelError("rope scaling 'yarn': beta_slow must not be above beta_fast")
    return theta, RopeScaling(kind=kind, factor=factor, **extra)


def _yarn_attention(parameters: Mapping[str, Any], factor: float) -> float:
    """The factor of cos and sin that transformers infers where none is given. Source: arXiv:2309.00071 section 3.4."""

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        scales = (value_of(parameters, name, float) for name in ("mscale", "mscale_all_dim"))
        return _growth(factor, next(scales)) / _growth(factor, next(scales))
    return _growth(factor, 1.0)


def _growth(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _local_theta(config: Mapping[str, Any]) -> float | None:
    """Gemma 3: the rotary base of the layers with a window."""
    if config["model_type"] != "gemma3_text":
        return None
    parameters = value_of(value_of(config, "rope_parameters", dict, {}), "sliding_attention", dict, {})
    kind = parameters.get("rope_type") or "default"
    if kind != "default":
        raise ModelError(f"rope scaling {shown(kind)} of sliding layers is not supported; supported: default")
    return value_of(parameters, "rope_theta", float, value_of(config, "rope_local_base_freq", float, 10_000.0))


def _latent(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a model with latent attention has of its own."""
    family, heads = config["model_type"], value_of(config, "num_attention_heads", int)
    hidden, layers = value_of(config, "hidden_size", int), num_layers_of(config)
    names = {"latent_dim": "kv_lora_rank", "nope_dim": "qk_nope_head_dim", "rope_dim": "qk_rope_head_dim"}
    sizes = {name: value_of(config, key, int) for name, key in names.items()}
    index = None
    if family == "deepseek_v32":
        names = {"num_heads": "index_n_heads", "dim": "index_head_dim", "count": "index_topk"}
        index = IndexConfig(**{name: value_of(config, key, int) for name, key in names.items()})
    width = sizes["nope_dim"] + sizes["rope_dim"]
    found = {
        "latent": LatentConfig(
            query_rank=None if config.get("q_lora_rank") is None else value_of(config, "q_lora_rank", int),
            value_dim=value_of(config, "v_head_dim", int, max(1, hidden // heads)),
            interleaved=family != "minicpm3" and value_of(config, "rope_interleave", bool, True),
            index=index,
            **sizes,
        ),
        "num_kv_heads": 1,
        "head_dim": width,
        "rotary_dim": sizes["rope_dim"],
        "attention_scale": _yarn_scale(config) * width**-0.5,
    }
    if family == "minicpm3":
        depth = None if config.get("scale_depth") is None else value_of(config, "scale_depth", float)
        base = None if config.get("dim_model_base") is None else value_of(config, "dim_model_base", int)
        found["embedding_scale"] = value_of(config, "scale_emb", float)
        found["residual_scale"] = 1.0 if depth is None else depth / layers**0.5
        found["logit_scale"] = 1.0 if base is None else base / hidden
    return found


def _yarn_scale(config: Mapping[str, Any]) -> float:
    """What scores are multiplied by where `mscale_all_dim` says so. Source: transformers' DeepseekV3."""
    parameters, (_, scaling) = _rope_parameters(config), _rope(config)
    if scaling is None or not parameters.get("mscale_all_dim"):
        return 1.0
    return _growth(scaling.factor, value_of(parameters, "mscale_all_dim", float)) ** 2


def _intermediate_size(config: Mapping[str, Any], experts: ExpertsConfig | None) -> int:
    """That of the MLP; of experts where no layer has another."""
    if experts is None or experts.routing is not None:
        return value_of(config, "intermediate_size", int)
    return experts.intermediate_size


def _experts_by_group(config: Mapping[str, Any]) -> ExpertsConfig:
    """The configuration of DeepSeek V3."""
    first, shared = (0 if config[key] == 0 else value_of(config, key, int)
                     for key in ("first_k_dense_replace", "n_shared_experts"))  # fmt: skip
    kinds = config.get("mlp_layer_types")
    if kinds is not None:
        layers = num_layers_of(config)
        first = kinds.count("dense") if isinstance(kinds, list) else 0
        if kinds != ["dense"] * first + ["sparse"] * (layers - first):
            raise _wrong("mlp_layer_types", f"a list of {layers}, dense ones first and then sparse ones", kinds)
    for key, known in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1)):
        if config.get(key, known) != known:
            raise ModelError(f"{key} {shown(config[key])} is not supported; supported: {known}")
    width = value_of(config, "moe_intermediate_size", int)
    return ExpertsConfig(
        count=value_of(config, "n_routed_experts", int),
        per_token=value_of(config, "num_experts_per_tok", int),
        intermediate_size=width,
        renormalise=value_of(config, "norm_topk_prob", bool),
        routing=RoutingConfig(
            num_groups=value_of(config, "n_group", int),
            groups_per_token=value_of(config, "topk_group", int),
            scaling=value_of(config, "routed_scaling_factor", float),
        ),
        shared_size=shared * width,
        first_layer=first,
    )


def _experts(config: Mapping[str, Any]) -> ExpertsConfig | None:
    """Routed experts; of Mixtral, Qwen's and gpt-oss layers without them among others are refused."""
    family = config["model_type"]
    if family in _GROUPED:
        return _experts_by_group(config)
    shared = family in ("qwen3_5_moe_text", "qwen3_next")
    if family not in ("mixtral", "qwen3_moe", "gpt_oss") and not shared:
        return None
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ModelError("layers with and without routed experts in one model are not supported")
    if family == "gpt_oss":
        limit, alpha = config.get("swiglu_limit", 7.0), config.get("swiglu_alpha", 1.702)
        if (limit, alpha) != (7.0, 1.702):
            raise ModelError(f"swiglu_limit {shown(limit)} and swiglu_alpha {shown(alpha)} are not supported; 7, 1.702")
    return ExpertsConfig(
        count=value_of(config, "num_experts" if "num_experts" in config else "num_local_experts", int),
        per_token=value_of(config, "num_experts_per_tok", int),
        intermediate_size=value_of(config, "moe_" * family.startswith("qwen") + "intermediate_size", int),
        renormalise=family not in ("qwen3_moe", "qwen3_next") or value_of(config, "norm_topk_prob", bool, False),
        bias=family == "gpt_oss",
        clamped=family == "gpt_oss",
        shared_size=value_of(config, "shared_expert_intermediate_size", int) if shared else 0,
        shared_gate=shared,
    )


def _recurrent(config: Mapping[str, Any]) -> RecurrentConfig | None:
    """Qwen3-Next and 3.5: layers of linear attention; without `layer_types` every fourth attends to all tokens."""
    if config["model_type"] not in _RECURRENT:
        return None
    layers = _layers_of_kind(config, "linear_attention")
    if layers is None:
        every = value_of(config, "full_attention_interval", int)
        layers = [(layer + 1) % every != 0 for layer in range(num_layers_of(config))]
    return RecurrentConfig(
        layers=tuple(layers),
        num_key_heads=value_of(config, "linear_num_key_heads", int),
        num_value_heads=value_of(config, "linear_num_value_heads", int),
        key_dim=value_of(config, "linear_key_head_dim", int),
        value_dim=value_of(config, "linear_value_head_dim", int),
        kernel=value_of(config, "linear_conv_kernel_dim", int),
        by_key_head=config["model_type"] == "qwen3_next",
    )


def sliding_layers(config: Mapping[str, Any]) -> list[bool] | None:
    """Which layers have the sliding window, by a config `with_defaults`; None: of a family that is not served, or has
    recurrent layers.

    Raises:
        ModelError: a value of another type.
    """
    if config.get("model_type") not in FAMILIES or config["model_type"] in _RECURRENT:
        return None
    window, slides = _sliding_window(config)
    return [window is not None] * num_layers_of(config) if slides is None else list(slides)


def _sliding_window(config: Mapping[str, Any]) -> tuple[int | None, tuple[bool, ...] | None]:
    """The window, and which layers have it (None: all); no window where no layer has it."""
    family = config["model_type"]
    if family in ("llama", *_RECURRENT) or config.get("sliding_window") is None:
        return None, None
    window = value_of(config, "sliding_window", int)
    if family in ("qwen2", "qwen3", "qwen3_moe") and not value_of(config, "use_sliding_window", bool, False):
        return None, None
    if family in ("mistral", "mixtral", "phi3", "qwen3_moe"):
        return window, None
    slides = _layers_of_kind(config, "sliding_attention") or _sliding_by_rule(config)
    if all(slides):
        return window, None
    return (window, tuple(slides)) if any(slides) else (None, None)


def _layers_of_kind(config: Mapping[str, Any], kind: str) -> list[bool] | None:
    """Which layers `layer_types` calls so, the others being "full_attention"; None where it is left out."""
    kinds, count = config.get("layer_types"), num_layers_of(config)
    if kinds is None or kinds == []:
        return None
    if not isinstance(kinds, list) or len(kinds) != count or not all(one in (kind, "full_attention") for one in kinds):
        raise _wrong("layer_types", f"a list of {count}, one a layer, of {kind} and full_attention", kinds)
    return [one == kind for one in kinds]


def _sliding_by_rule(config: Mapping[str, Any]) -> list[bool]:
    """Which layers of the family have the window where config.json does not list them."""
    family, layers = config["model_type"], range(num_layers_of(config))
    if family in ("gemma2", "gpt_oss"):
        return [layer % 2 == 0 for layer in layers]
    if family == "gemma3_text":
        every = value_of(config, "sliding_window_pattern", int, value_of(config, "_sliding_window_pattern", int, 6))
        return [(layer + 1) % every != 0 for layer in layers]
    first = config.get("max_window_layers", 28)  # layers from there on have the window
    if not is_integer(first) or first < 0:
        raise _wrong("max_window_layers", "an integer of at least 0", first)
    return [layer >= first for layer in layers]
