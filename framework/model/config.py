"""A model family's config: the shape of a model, read from its config.json, and the modules of its layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ModelError, shown
from framework.model.hf_config import num_layers_of, token_ids, value_of, wrong_value
from framework.model.shape import FULL, SLIDING, ModelShape, RopeScaling

if TYPE_CHECKING:
    from framework.model.layers import DecoderLayer, Mixer, Mlp, NewWeight

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class ModelConfig(ModelShape):
    """A model of a family, which is a subclass, an entry point of the group `framework.family` by its `model_type`.

    It says how a config.json is read, adds fields of its own, and makes the modules of its layers, which know their
    weights' names. Its module is imported for a config.json alone: it imports torch as late as it can.

    Class attributes:
        DEFAULTS: what transformers assumes where config.json leaves a key out.
        NULL_IS_NONE: keys whose null says that there is none; elsewhere null leaves a key out.
        ACTIVATION: the key of the gate's activation, and which are known.
        ROTATES_IN_PART: whether `partial_rotary_factor` is known.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    NULL_IS_NONE: ClassVar[tuple[str, ...]] = ("sliding_window",)
    ACTIVATION: ClassVar[tuple[str, tuple[str, ...]]] = ("hidden_act", ("silu", "swish"))
    ROTATES_IN_PART: ClassVar[bool] = False

    @classmethod
    def filled(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """A config.json of text alone, and what transformers assumes where it leaves a key out."""
        given = {key: value for key, value in config.items() if value is not None or key in cls.NULL_IS_NONE}
        return {**cls.DEFAULTS, **given}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's keywords, by a config.json that is `filled`.

        Raises:
            ModelError: a key that is missing, a value of another type, a feature that is not supported.
        """
        key, known = cls.ACTIVATION
        if (activation := config.get(key) or known[0]) not in known:
            raise ModelError(f"{key} {shown(activation)} is not supported; supported: {known[0]}")
        if config.get("quantization_config"):
            method = value_of(config, "quantization_config", dict).get("quant_method", "unknown")
            raise ModelError(f"quantised weights ({shown(method)}) are not supported; use the unquantised checkpoint")
        hidden, heads = value_of(config, "hidden_size", int), value_of(config, "num_attention_heads", int)
        head_dim = value_of(config, "head_dim", int, max(1, hidden // heads))
        share = value_of(config, "partial_rotary_factor", float, 1.0)
        share = value_of(rope_parameters(config), "partial_rotary_factor", float, share)
        if share != 1 and not cls.ROTATES_IN_PART:
            raise ModelError(f"partial_rotary_factor {share} is not supported; supported: 1.0")
        theta, scaling = rope_of(config)
        slides = tuple(name == SLIDING for name in cls.layer_names(config))
        bias = value_of(config, "attention_bias", bool, False)
        return {
            "family": config["model_type"],
            "vocab_size": value_of(config, "vocab_size", int),
            "hidden_size": hidden,
            "num_layers": num_layers_of(config),
            "num_heads": heads,
            "num_kv_heads": value_of(config, "num_key_value_heads", int, heads),
            "head_dim": head_dim,
            "intermediate_size": value_of(config, "intermediate_size", int),
            "rope_theta": theta,
            "rope_scaling": scaling,
            "rms_norm_eps": value_of(config, "rms_norm_eps", float, 1e-6),
            "tie_word_embeddings": value_of(config, "tie_word_embeddings", bool, False),
            "attention_bias": bias,
            "output_bias": bias,
            "max_position_embeddings": value_of(config, "max_position_embeddings", int, 2048),
            "sliding_window": value_of(config, "sliding_window", int) if any(slides) else None,
            "sliding_layers": None if all(slides) or not any(slides) else slides,
            "rotary_dim": None if share == 1 else int(share * head_dim),
            "bos_token_id": next(iter(token_ids(config, "bos_token_id")), None),
            "eos_token_ids": token_ids(config, "eos_token_id"),
            "dtype": str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")[:60],
        }

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        """What each layer is, in the words of `layer_types`; arguments and errors as of `read`."""
        return [FULL] * num_layers_of(config)

    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        """What mixes the tokens of that layer; its weights are made by `weight`."""
        from framework.model.layers import SelfAttention

        return SelfAttention(self, weight)

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        """What follows in that layer."""
        from framework.model.layers import GatedMlp

        return GatedMlp(self, weight)

    def layer(self, layer: int, weight: NewWeight) -> DecoderLayer:
        """That layer, of both."""
        from framework.model.layers import DecoderLayer

        return DecoderLayer(self, layer, weight, self.attention(layer, weight), self.mlp(layer, weight))

    def name_of(self, stored: str) -> str:
        """What a checkpoint's tensor is called here: `model.layers.0.` and a name of the layer's `targets`, ..."""
        name = stored.replace("model.language_model.", "model.", 1)  # of a model that also sees
        return name if name.startswith(("model.", "lm_head.", "mtp.")) else f"model.{name}"

    def is_unused(self, weight: str) -> bool:
        """Whether a checkpoint's tensor of this name is harmless though it has no place: a tied head stored twice, a
        table that old versions saved."""
        return (weight == "lm_head.weight" and self.tie_word_embeddings) or weight.endswith("rotary_emb.inv_freq")


def named_layers(config: Mapping[str, Any], kind: str, rule: Iterable[bool]) -> list[str]:
    """What each layer is, `kind` or full attention, as `layer_types` says; where it is left out by `rule`, a flag each.

    No layer slides without a `sliding_window`.

    Raises:
        ModelError: `layer_types` is no such list.
    """
    names, count = config.get("layer_types"), num_layers_of(config)
    if kind == SLIDING and config.get("sliding_window") is None:
        return [FULL] * count
    if not names and names in (None, []):
        return [kind if flag else FULL for flag in rule]
    if not isinstance(names, list) or len(names) != count or not all(name in (kind, FULL) for name in names):
        raise wrong_value("layer_types", f"a list of {count}, one a layer, of {kind} and {FULL}", names)
    return names


def rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of rotation, by either name; those of full attention where layers differ."""
    parameters = value_of(config, "rope_parameters", dict, {}) or value_of(config, "rope_scaling", dict, {})
    return value_of(parameters, "full_attention", dict, parameters)


def rope_of(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """The base of the frequencies, and their scaling."""
    parameters = rope_parameters(config)
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
        if extra["low_freq_factor"] > extra["high_freq_factor"]:
            raise ModelError("rope scaling 'llama3': low_freq_factor must not be above high_freq_factor")
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
        return growth(factor, next(scales)) / growth(factor, next(scales))
    return growth(factor, 1.0)


def growth(factor: float, scale: float) -> float:
    """By which yarn's attention grows with its context. Source: arXiv:2309.00071 section 3.4; transformers."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
