"""Groups of a model from its published config.json, and those of large models by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from framework.errors import ConfigError, ModelError, shown
from framework.files.jsonl import read_object
from framework.groups.kinds import Kind, KVGroup, unified_block_tokens
from framework.model.hf_config import num_layers_of, value_of

_KINDS: dict[str, Kind] = {
    "full_attention": "full", "attention": "full", "sliding_attention": "window", "chunked_attention": "chunk",
    "linear_attention": "state", "mamba": "state",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers of one kind: how many, bytes a token (attention) or a state, window or chunk length."""

    count: int
    num_bytes: int
    length: int = 0


def groups_of(
    config: Mapping[str, Any] | str, *, block_tokens: int = 16, layout: Literal["by_kind", "one_page"] = "by_kind"
) -> tuple[KVGroup, ...]:
    """The groups of a model, full attention first. A number of K, V and convolutions has 2 bytes, of a state 4.

    Args:
        config: as in config.json, the path of one, or a name in `SHAPES`.
        block_tokens: of attention, and the distance of places for a state. `one_page` takes the smallest multiple that
            holds a state.
        layout: `by_kind` has one group a kind. `one_page` splits kinds into groups of equally many layers, as many as
            the kind with the fewest has, whose blocks all have the bytes of one page; what does not fill it is padding.

    Raises:
        ConfigError: an unknown name, or a configuration that does not name its layers in a way known here.
    """
    try:
        kinds = _layers(_config(config))
    except ModelError as error:
        raise ConfigError(f"{error}; a model's groups are made from the config.json of a decoder, or of a named "
                          "shape") from error  # fmt: skip
    ordered = [(kind, kinds[kind]) for kind in ("full", "window", "chunk", "state") if kind in kinds]
    if layout == "by_kind":
        return tuple(
            KVGroup(name=kind, kind=kind, block_tokens=block_tokens, length=layers.length,
                    block_bytes=layers.count * layers.num_bytes * (1 if kind == "state" else block_tokens))
            for kind, layers in ordered
        )  # fmt: skip
    attention = max((layers.num_bytes for kind, layers in ordered if kind != "state"), default=1)
    if "state" in kinds:
        block_tokens = unified_block_tokens(kinds["state"].num_bytes, attention, block_tokens)
    width = min(layers.count for _, layers in ordered)
    return tuple(
        KVGroup(name=kind if layers.count <= width else f"{kind}{part}", kind=kind, length=layers.length,
                block_tokens=block_tokens, block_bytes=width * block_tokens * attention)
        for kind, layers in ordered
        for part in range(-(-layers.count // width))
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Operations of a prefill, by kind of layer, as Marconi counts them (arXiv:2411.19379).

    Of L tokens, with `width` numbers a token (d, the hidden size) and `state_width` numbers of state a channel (n): a
    layer of attention 8 L d^2 + 4 L^2 d, an MLP 16 L d^2, a recurrent layer 12 L d^2 + 16 L d n + 10 L. Multiplication
    and addition are two, all pairs of tokens count, and an MLP is dense and four times as wide as the model.

    Attributes:
        attention, mlp, state: layers of each. Marconi's own model has 4, 28 and 24, with d 4,096 and n 128.
    """

    attention: int
    mlp: int
    state: int
    width: int
    state_width: int

    def saved(self, above: int, end: int, *, as_coded: bool = False) -> int:
        """Operations that a state at `end` tokens spares a request that would go on from `above`. See orders.Marconi.

        Args:
            as_coded: the MLPs' term has the attention of `above` subtracted in place of its own.
        """
        d, n = self.width, self.state_width
        attention = [8 * tokens * d**2 + 4 * tokens**2 * d for tokens in (above, end)]
        of_mlp = 16 * end * d**2 - (attention[0] if as_coded else 16 * above * d**2)
        of_state = (end - above) * (12 * d**2 + 16 * d * n + 10)
        return self.attention * (attention[1] - attention[0]) + self.mlp * of_mlp + self.state * of_state


def flops_of(config: Mapping[str, Any] | str) -> Flops:
    """Of a model with full attention and states.

    Raises:
        ConfigError: an unknown name; no hidden_size; layers of other kinds, which Marconi's formula does not have.
    """
    config = _config(config)
    try:
        types, state_width = _types(config), 0
        if "state" in types:
            linear = _linear(config)
            state_width = value_of(linear or config, "head_dim" if linear else "linear_key_head_dim", int)
        width = value_of(config, "hidden_size", int) if set(types) <= {"full", "state"} else 0
    except ModelError as error:
        raise ConfigError(f"{error}; Marconi's order needs it: choose another order") from error
    if not width:
        raise ConfigError(f"Marconi counts layers of full attention and states, found layers {sorted(set(types))}; "
                          "choose another order")  # fmt: skip
    return Flops(attention=types.count("full"), mlp=len(types), state=types.count("state"), width=width,
                 state_width=state_width)  # fmt: skip


def _config(config: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """The text model's part of a configuration, of a named shape's or of a file's."""
    if isinstance(config, str) and config not in SHAPES:
        path = Path(config)
        try:
            config = read_object(path / "config.json" if path.is_dir() else path, ConfigError)
        except ConfigError as error:
            raise ConfigError(f"no groups are known of {config!r}; give a config.json or one of "
                              f"{', '.join(sorted(SHAPES))} ({error})") from error  # fmt: skip
    found = SHAPES[config] if isinstance(config, str) else config
    if not isinstance(found, Mapping):
        raise ConfigError(f"a model's configuration is a mapping, found {shown(found)}")
    return dict(value_of(found, "text_config", dict, {}) or found)


def _linear(config: Mapping[str, Any]) -> dict[str, Any]:
    """Kimi's part on its layers with a state; empty where there is none."""
    return value_of(config, "linear_attn_config", dict, {})


def _layers(config: Mapping[str, Any]) -> dict[Kind, _Layers]:
    types = _types(config)
    if "kv_lora_rank" in config:  # multi-head latent attention: one vector and its rotary part
        token = (value_of(config, "kv_lora_rank", int) + value_of(config, "qk_rope_head_dim", int)) * 2
    else:
        heads, given = value_of(config, "num_attention_heads", int), config.get("head_dim") is not None
        dim = value_of(config, "head_dim", int) if given else value_of(config, "hidden_size", int) // heads
        token = 2 * value_of(config, "num_key_value_heads", int, heads) * dim * 2
    found: dict[Kind, _Layers] = {}
    for kind in dict.fromkeys(types):
        if kind == "state":
            found[kind] = _Layers(types.count(kind), _state(config))
        else:
            length = "" if kind == "full" else "sliding_window" if kind == "window" else "attention_chunk_size"
            found[kind] = _Layers(types.count(kind), token, value_of(config, length, int) if length else 0)
    return found


def _types(config: Mapping[str, Any]) -> list[Kind]:
    """The kind of each layer, from whichever way the family has to say it."""
    count = num_layers_of(config)
    if names := config.get("layer_types"):
        if not isinstance(names, list) or len(names) != count or not all(_is_kind(name) for name in names):
            raise ConfigError(f"config.json: 'layer_types' must be a list of {count}, one a layer, of "
                              f"{', '.join(sorted(_KINDS))}, found {shown(names)}")  # fmt: skip
        return [_KINDS[name] for name in names]
    if linear := _linear(config):
        full = linear.get("full_attn_layers")  # numbered from 1
        if not isinstance(full, list):
            raise ConfigError(f"config.json: 'full_attn_layers' must be a list of layers, found {shown(full)}")
        return ["full" if number in full else "state" for number in range(1, count + 1)]
    for key, other in (("full_attention_interval", "state"), ("sliding_window_pattern", "window")):
        if every := value_of(config, key, int, 0):
            kind = _KINDS["linear_attention" if other == "state" else "sliding_attention"]
            return ["full" if number % every == 0 else kind for number in range(1, count + 1)]
    return ["window" if value_of(config, "sliding_window", int, 0) else "full"] * count


def _is_kind(name: Any) -> bool:
    return isinstance(name, str) and name in _KINDS


def _state(config: Mapping[str, Any]) -> int:
    """Bytes of one layer's recurrent state: a matrix a head, and what the short convolution looks back to."""
    if linear := _linear(config):
        heads, key, kernel = (
            value_of(linear, name, int) for name in ("num_heads", "head_dim", "short_conv_kernel_size")
        )
        value, channels = key, 3 * heads * key
    else:
        heads, key, value, key_heads, kernel = (
            value_of(config, f"linear_{name}", int)
            for name in ("num_value_heads", "key_head_dim", "value_head_dim", "num_key_heads", "conv_kernel_dim")
        )
        channels = 2 * key_heads * key + heads * value
    return heads * key * value * 4 + (kernel - 1) * channels * 2


def _qwen(num_layers: int, width: int, num_kv_heads: int, num_value_heads: int) -> dict[str, Any]:
    """Gated delta rule in three of four layers."""
    return {
        "num_hidden_layers": num_layers, "hidden_size": width, "full_attention_interval": 4, "num_attention_heads": 16,
        "num_key_value_heads": num_kv_heads, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": num_value_heads, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "gemma-3-27b": {
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "sliding_window": 1024, "sliding_window_pattern": 6,
    },
    "gpt-oss-120b": {
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
    "llama-4-scout": {
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "attention_chunk_size": 8192, "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 12,
    },
    "qwen3-next-80b": _qwen(48, 2048, 2, 32),
    "qwen3.5-4b": _qwen(32, 2560, 4, 32),
    "qwen3.8-27b": _qwen(64, 5120, 4, 48),
    "kimi-linear-48b": {
        "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128,
                               "short_conv_kernel_size": 4},
    },
}  # fmt: skip
"""Name -> the part of its config.json that says what KV it keeps."""
