"""What the layers of a published model keep of a request, read from its config.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from framework.errors import ModelError, shown
from framework.interfaces.groups import Kind
from framework.model.families import layer_names_of, with_defaults
from framework.model.hf_config import num_layers_of, value_of

ORDER: tuple[Kind, ...] = ("full", "window", "chunk", "state")

_KINDS: dict[str, Kind | None] = {
    "full_attention": "full", "attention": "full", "indexed_attention": "full", "compressed_sparse_attention": "full",
    "heavily_compressed_attention": "full", "sliding_attention": "window", "chunked_attention": "chunk",
    "linear_attention": "state", "mamba": "state", "conv": "state", "moe": None, "mlp": None,
}  # fmt: skip
"""What `layer_types` calls a layer -> what it keeps."""
_DEEPSEEK_COMPRESSION = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_OF_STATES = ("mamba_", "ssm_", "linear_num_", "linear_attn_config", "conv_L_cache")
_HEADS = ("num_attention_heads", "linear_num_heads", "linear_num_key_heads", "linear_num_value_heads",
          "mamba_num_heads", "mamba_n_heads")  # fmt: skip
_SHARED_HEADS = ("num_key_value_heads", "num_global_key_value_heads", "swa_num_key_value_heads", "n_groups",
                 "mamba_n_groups")  # fmt: skip
"""Of which one may be kept by several ranks."""
_UNREAD = ("attn_type_list", "block_types", "layers_num_attention_heads", "is_encoder_decoder")


@dataclass(frozen=True, slots=True, order=True)
class Plane:
    """A part of what a layer keeps.

    Attributes:
        name: k and v; latent and rope, one for all heads; index, of an indexer; of a state, memory and conv.
        num_bytes: of one entry, or of a state.
    """

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers that keep the same. A number of K, V, latents and convolutions has 2 bytes, of a state's memory 4.

    Attributes:
        count: of these layers.
        planes: of one of them.
        length: tokens of the window, the last one included, or of the chunk; 0 for the others.
        entry_tokens: for how many tokens an entry stands: 1, but where a layer compresses.
    """

    kind: Kind
    count: int
    planes: tuple[Plane, ...]
    length: int = 0
    entry_tokens: int = 1

    @property
    def num_bytes(self) -> int:
        """Size of one entry, or one state, of one layer."""
        return sum(plane.num_bytes for plane in self.planes)


def layers_of(config: Mapping[str, Any]) -> tuple[Layers, ...]:
    """The layers that keep something, by kind, full attention first.

    Args:
        config: as in config.json; of a model with several parts, its `text_config` counts.

    Raises:
        ModelError: layers that are named in no way known here, a key that is missing, a value of another type.
    """
    config = with_defaults(config)
    counts: Counter[Layers] = Counter()
    for layer, name in enumerate(layer_names(config)):
        for kept in _kept(config, layer, name):
            counts[kept] += 1
    if not counts:
        raise ModelError("config.json has no layer that keeps anything of a request")
    made = (replace(one, count=count) for one, count in counts.items())
    return tuple(sorted(made, key=lambda one: ORDER.index(one.kind)))


def of_rank(config: Mapping[str, Any], ranks: int) -> Mapping[str, Any]:
    """The configuration as one of `ranks` tensor-parallel ranks has it: its heads of K, V and states.

    Latents and indexers' keys have no heads: each rank keeps them whole. Fewer KV heads than ranks are kept by several.

    Raises:
        ModelError: heads that do not divide so, or states without heads.
    """
    if ranks == 1:
        return config
    config = dict(with_defaults(config))
    if signs := [key for key in ("conv_L_cache", "mamba_dt_rank") if config.get(key) is not None]:
        raise ModelError(
            f"config.json has '{signs[0]}', of states without heads, which are not divided over ranks here"
        )

    def divided(part: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
        found = dict(part)
        for key in (key for key in keys if part.get(key) is not None):
            heads = value_of(part, key, int)
            if heads % ranks and (key not in _SHARED_HEADS or ranks % heads):
                raise ModelError(f"config.json: {heads} of '{key}' do not divide over {ranks} ranks")
            found[key] = max(1, heads // ranks)
        return found

    if config.get("head_dim") is None and config.get("hidden_size") is not None:
        config["head_dim"] = value_of(config, "hidden_size", int) // value_of(config, "num_attention_heads", int)
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = config.get("num_attention_heads")
    if linear := _linear(config):
        config["linear_attn_config"] = divided(linear, ["num_heads"])
    return divided(config, [*_HEADS, *_SHARED_HEADS])


def kinds_of(config: Mapping[str, Any]) -> list[Kind]:
    """The kind of each layer that keeps something.

    Raises:
        ModelError: as `layers_of`.
    """
    config = with_defaults(config)
    return [kind for kind in (_KINDS[name] for name in layer_names(config)) if kind is not None]


def layer_names(config: Mapping[str, Any]) -> list[str]:
    """What `layer_types` would call each layer, from whichever way the family has to say it."""
    if unread := [key for key in _UNREAD if config.get(key)]:
        raise ModelError(f"config.json: '{unread[0]}' says what layers are in a way that is not read here")
    names = _layer_names(config)
    signs = [key for key in config if key.startswith(_OF_STATES) and config[key] is not None]
    if signs and not any(_KINDS[name] == "state" for name in names):
        raise ModelError(f"config.json has '{signs[0]}', and says in no way known here which layers keep a state")
    shared = value_of(config, "num_kv_shared_layers", int, 0) if config.get("num_kv_shared_layers") else 0
    return names[: len(names) - shared]  # the last layers read what earlier ones keep


def _layer_names(config: Mapping[str, Any]) -> list[str]:
    given = config.get("layer_types") or config.get("layers_block_type")
    if given is not None:
        count = num_layers_of(config) if config.get("num_hidden_layers") else len(given)
        if not isinstance(given, list) or len(given) != count or not all(_is_known(name) for name in given):
            raise ModelError(f"config.json: 'layer_types' must be a list of {count}, one a layer, of "
                             f"{', '.join(sorted(_KINDS))}, found {shown(given)}")  # fmt: skip
        return given
    count = num_layers_of(config) if config.get("num_layers") is None else 2 * value_of(config, "num_layers", int)
    if linear := _linear(config):
        full = linear.get("full_attn_layers")  # numbered from 1
        if not isinstance(full, list):
            raise ModelError(f"config.json: 'full_attn_layers' must be a list of layers, found {shown(full)}")
        return ["full_attention" if number in full else "linear_attention" for number in range(1, count + 1)]
    if ratios := config.get("compress_ratios"):
        if (
            not isinstance(ratios, list)
            or len(ratios) < count
            or not all(ratio in _DEEPSEEK_COMPRESSION for ratio in ratios)
        ):
            raise ModelError(f"config.json: 'compress_ratios' must be a list of {count}, one a layer, of "
                             f"{', '.join(map(str, _DEEPSEEK_COMPRESSION))}, found {shown(ratios)}")  # fmt: skip
        return [_DEEPSEEK_COMPRESSION[ratio] for ratio in ratios[:count]]
    if config.get("attn_layer_period") is not None:
        period, first = value_of(config, "attn_layer_period", int), config.get("attn_layer_offset")
        if first not in range(period):
            raise ModelError(f"config.json: 'attn_layer_offset' must be 0 to {period - 1}, found {shown(first)}")
        return ["full_attention" if layer % period == first else "mamba" for layer in range(count)]
    if (names := layer_names_of(config)) is not None:
        return names
    for key, other in (("attn_layer_indices", "mamba"), ("full_attn_idxs", "conv")):
        if (full := config.get(key)) is not None:
            if not isinstance(full, list):
                raise ModelError(f"config.json: '{key}' must be a list of layers, found {shown(full)}")
            return ["full_attention" if layer in full else other for layer in range(count)]
    for key, other in (("full_attention_interval", "linear_attention"), ("layer_group_size", "linear_attention"),
                       ("sliding_window_pattern", "sliding_attention")):  # fmt: skip
        if config.get(key) and (every := value_of(config, key, int)):
            return ["full_attention" if number % every == 0 else other for number in range(1, count + 1)]
    return ["sliding_attention" if config.get("sliding_window") else "full_attention"] * count


def _is_known(name: Any) -> bool:
    return isinstance(name, str) and name in _KINDS


def _linear(config: Mapping[str, Any]) -> dict[str, Any]:
    """Kimi's part on its layers with a state; empty where there is none."""
    return value_of(config, "linear_attn_config", dict, {})


def _kept(config: Mapping[str, Any], layer: int, name: str) -> list[Layers]:
    """What this layer keeps: nothing, something of one kind, or, where it compresses, entries beside a window."""
    kind = _KINDS[name]
    if kind is None:
        return []
    if kind == "state":
        return [Layers(kind=kind, count=1, planes=_state(config, name))]
    if config.get("model_type") == "deepseek_v4":
        return _compressed(config, name)
    length = {"window": "sliding_window", "chunk": "attention_chunk_size"}.get(kind)
    return [Layers(kind=kind, count=1, planes=_attention(config, layer, kind),
                   length=value_of(config, length, int) if length else 0)]  # fmt: skip


def _attention(config: Mapping[str, Any], layer: int, kind: Kind) -> tuple[Plane, ...]:
    if config.get("kv_lora_rank") is not None:  # multi-head latent attention
        planes = [Plane("latent", 2 * value_of(config, "kv_lora_rank", int))]
        if config.get("qk_rope_head_dim") != 0:
            planes.append(Plane("rope", 2 * value_of(config, "qk_rope_head_dim", int)))
        if config.get("index_head_dim") is not None and _indexes(config, layer):
            planes.append(Plane("index", 2 * value_of(config, "index_head_dim", int)))
        return tuple(planes)
    heads = value_of(config, "num_attention_heads", int)
    if (dim := _own(config, kind, "head_dim")) is None:
        dim = value_of(config, "hidden_size", int) // heads
    value_dim, kv_heads = _own(config, kind, "v_head_dim") or dim, _own(config, kind, "num_key_value_heads") or heads
    return Plane("k", 2 * kv_heads * dim), Plane("v", 2 * kv_heads * value_dim)


def _own(config: Mapping[str, Any], kind: Kind, key: str) -> int | None:
    """The key's value for this kind, where layers of full attention or of a window have one of their own."""
    word = {"num_key_value_heads": "num_global_key_value_heads"}.get(key, f"global_{key}")
    own = {"full": word, "window": f"swa_{key}"}.get(kind, key)
    for one in (own, key):
        if config.get(one) is not None:
            return value_of(config, one, int)
    return None


def _indexes(config: Mapping[str, Any], layer: int) -> bool:
    """Whether this layer has an index of its own: others read that of a layer before."""
    given = config.get("indexer_types") or config.get("index_topk_pattern")
    if given is not None:
        if not isinstance(given, (list, str)) or len(given) <= layer:
            raise ModelError(f"config.json: which layers have an index is a list, one a layer, found {shown(given)}")
        return given[layer] in ("full", "F")
    every = value_of(config, "index_topk_freq", int, 1)
    offset = config.get("index_skip_topk_offset", 2)
    return bool(max(layer - offset + 1, 0) % every == 0)


def _compressed(config: Mapping[str, Any], name: str) -> list[Layers]:
    """Layers of DeepSeek V4, a window of latents in every layer, and one entry for every 4 or 128 tokens in most."""
    latent = Plane("latent", 2 * value_of(config, "head_dim", int))
    window = Layers(kind="window", count=1, planes=(latent,), length=value_of(config, "sliding_window", int))
    if name == "sliding_attention":
        return [window]
    tokens = next(ratio for ratio, other in _DEEPSEEK_COMPRESSION.items() if other == name)
    planes: tuple[Plane, ...] = (latent,)
    if name == "compressed_sparse_attention":
        planes = latent, Plane("index", 2 * value_of(config, "index_head_dim", int))
    rate = value_of(value_of(config, "compress_rates", dict, {}), name, int, tokens)
    return [Layers(kind="full", count=1, planes=planes, entry_tokens=rate), window]


def _state(config: Mapping[str, Any], name: str) -> tuple[Plane, ...]:
    """A matrix a head, and what the short convolution before it looks back to."""
    if name == "conv":
        back = value_of(config, "conv_L_cache", int) - 1
        return (Plane("conv", 2 * back * value_of(config, "hidden_size", int)),)
    memory, channels, kernel = _recurrence(config)
    return Plane("memory", 4 * memory), Plane("conv", 2 * (kernel - 1) * channels)


def _recurrence(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """One layer's state: elements of its matrices, channels of the convolution, and the tokens that this reads."""
    if linear := _linear(config):  # Kimi Delta Attention
        heads, key, kernel = (
            value_of(linear, name, int) for name in ("num_heads", "head_dim", "short_conv_kernel_size")
        )
        return heads * key * key, 3 * heads * key, kernel
    if config.get("linear_num_heads") is not None or config.get("layer_group_size") is not None:  # the same
        heads = _first(config, "linear_num_heads", "num_attention_heads")
        key, kernel = (
            _first(config, "linear_head_dim", "head_dim"),
            _first(config, "linear_conv_kernel_dim", "short_conv_kernel_size"),
        )
        return heads * key * key, 3 * heads * key, kernel
    if config.get("mamba_expand") is not None and config.get("mamba_dt_rank") is not None:  # Mamba 1
        inner = value_of(config, "mamba_expand", int) * value_of(config, "hidden_size", int)
        return inner * value_of(config, "mamba_d_state", int), inner, value_of(config, "mamba_d_conv", int)
    if heads := _first(config, "mamba_num_heads", "mamba_n_heads", default=0):  # Mamba 2
        inner = heads * _first(config, "mamba_head_dim", "mamba_d_head")
        width = _first(config, "ssm_state_size", "mamba_d_state")
        groups = _first(config, "n_groups", "mamba_n_groups")
        return inner * width, inner + 2 * groups * width, _first(config, "conv_kernel", "mamba_d_conv")
    heads, key, value, key_heads, kernel = (  # the gated delta rule
        value_of(config, f"linear_{name}", int)
        for name in ("num_value_heads", "key_head_dim", "value_head_dim", "num_key_heads", "conv_kernel_dim")
    )
    return heads * key * value, 2 * key_heads * key + heads * value, kernel


def _first(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """The value of the first of these keys that is there."""
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    return default if default is not None and config.get(key) is None else value_of(config, key, int)
