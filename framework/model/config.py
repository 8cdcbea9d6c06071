"""What shape is a decoder, and does this laboratory know how to run it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = ("float32", "bfloat16", "float16", "float64")
ROPE_TYPES = ("default", "linear", "llama3")

_MISSING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides every frequency by `factor`. `llama3` divides those whose wavelength is longer than
    `original_max_position_embeddings / low_freq_factor`, keeps those shorter than `.../high_freq_factor`, and blends
    between (Llama 3.1 model card; transformers' `rope_utils`).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer of one of `FAMILIES`. Sizes in elements, positions in tokens.

    Attributes:
        attention_bias: q, k and v projections have a bias. output_bias: so has the output projection.
        mlp_bias: all three MLP projections have a bias.
        qk_norm: queries and keys are RMS-normalised per head before rotation (Qwen3).
        sliding_window: every layer sees only the last so many tokens, itself included; None sees all.
        eos_token_ids: as config.json has them; a checkpoint's generation_config.json overrides them on loading.
        dtype: torch's name of the dtype the weights were saved in.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "intermediate_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelError(f"{name} must be an integer of at least 1, found {value!r}")
        if self.family not in FAMILIES:
            raise ModelError(f"no model family '{self.family}'; supported: {', '.join(FAMILIES)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} query heads are not a multiple of {self.num_kv_heads} kv heads")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ModelError(f"head_dim must be even and at least 2, found {self.head_dim}")
        if self.dtype not in DTYPES:
            raise ModelError(f"no model dtype '{self.dtype}'; supported: {', '.join(DTYPES)}")

    @property
    def num_parameters(self) -> int:
        """All weights, embeddings included; a tied embedding counts once."""
        heads, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * heads + 2 * kv)
        attention += (heads + 2 * kv) * self.attention_bias + self.hidden_size * self.output_bias
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * (attention + mlp + norms) + embeddings + self.hidden_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read a Hugging Face config.json, of transformers 4 (`rope_scaling`) or 5 (`rope_parameters`).

        Raises:
            ModelError: a family or a feature outside what is supported, by name, or a key that is missing.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ModelError(f"model family {family!r} is not supported; supported: {', '.join(FAMILIES)}")
        _refuse_unknown_features(config)
        hidden, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
        theta, scaling = _rope(config)
        llama_bias = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=_need(config, "vocab_size"),
            hidden_size=hidden,
            num_layers=_need(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or (128 if family == "qwen3" else hidden // heads),
            intermediate_size=_need(config, "intermediate_size"),
            rope_theta=theta,
            rope_scaling=scaling,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=family == "qwen2" or (llama_bias and family != "mistral"),
            output_bias=llama_bias and family in ("llama", "qwen3"),
            mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
            qk_norm=family == "qwen3",
            max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
            sliding_window=_sliding_window(config),
            bos_token_id=_first(config.get("bos_token_id")),
            eos_token_ids=token_ids(config.get("eos_token_id")),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch."),
        )


def token_ids(value: Any) -> tuple[int, ...]:
    """A Hugging Face token id field, which is null, an integer or a list, as a tuple."""
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, (list, tuple)) else (int(value),)


def _first(value: Any) -> int | None:
    return next(iter(token_ids(value)), None)


def _need(config: Mapping[str, Any], key: str) -> Any:
    value = config.get(key, _MISSING)
    if value is _MISSING or value is None:
        raise ModelError(f"config.json has no '{key}', which a {config.get('model_type')} model needs")
    return value


def _refuse_unknown_features(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"hidden_act '{activation}' is not supported; supported: silu")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"quantised weights ('{method}') are not supported; use the unquantised checkpoint")
    if config.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
        raise ModelError(f"partial_rotary_factor {config['partial_rotary_factor']} is not supported; supported: 1.0")


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelError(f"rope scaling '{kind}' is not supported; supported: {', '.join(ROPE_TYPES)}")
    if parameters.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
        raise ModelError(f"partial_rotary_factor {parameters['partial_rotary_factor']} is not supported")
    if kind == "default":
        return float(theta), None
    known = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    needed = ("factor", *known) if kind == "llama3" else ("factor",)
    for key in needed:
        if key not in parameters:
            raise ModelError(f"rope scaling '{kind}' needs '{key}', which config.json does not give")
    extra = {key: parameters[key] for key in known if key in needed}
    return float(theta), RopeScaling(kind=kind, factor=float(parameters["factor"]), **extra)


def _sliding_window(config: Mapping[str, Any]) -> int | None:
    """The window if every layer has it, None if no layer has; a mixture is refused."""
    window = config.get("sliding_window")
    family, layers = config.get("model_type"), config.get("num_hidden_layers", 0)
    if window is None or family == "llama":
        return None
    if family in ("qwen2", "qwen3"):
        if not config.get("use_sliding_window", False):
            return None
        kinds = config.get("layer_types") or [
            "sliding_attention" if layer >= config.get("max_window_layers", 28) else "full_attention"
            for layer in range(layers)
        ]
        if all(kind == "full_attention" for kind in kinds):
            return None
        if any(kind != "sliding_attention" for kind in kinds):
            raise ModelError("layers with and without a sliding window in one model are not supported")
    return int(window)
