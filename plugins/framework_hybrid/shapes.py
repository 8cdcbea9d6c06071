"""Groups of a model from its published config.json, and those of large models by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from framework.errors import ConfigError, ModelError, shown
from framework.files.jsonl import read_object
from framework.interfaces.groups import KVGroup, equal_layers
from framework.model.families import with_defaults
from framework.model.hf_config import find_checkpoint, value_of
from framework_hybrid.layers import Layers, kinds_of, layers_of, of_rank


def unified_block_tokens(state_bytes: int, token_bytes: int, multiple: int = 16) -> int:
    """Tokens of the smallest attention block that is no smaller than a state, so that both fit one page.

    Args:
        state_bytes: of one layer's state.
        token_bytes: K and V of one token in one attention layer.
        multiple: of tokens that the kernel takes.
    """
    return -(-state_bytes // (multiple * token_bytes)) * multiple


def groups_of(
    config: Mapping[str, Any] | str, *, block_tokens: int = 16, layout: Literal["by_kind", "one_page"] = "by_kind"
) -> tuple[KVGroup, ...]:
    """The groups of a model, full attention first. A number of K, V and convolutions has 2 bytes, of a state 4.

    Args:
        config: as in config.json, the path of one, or a name in `SHAPES`.
        block_tokens: of attention, and the distance of places for a state. `one_page` takes the smallest multiple that
            holds a state.
        layout: `by_kind` has a group of all layers that keep the same. `one_page` splits these into groups of equally
            many layers (see `equal_layers`), whose blocks all have the bytes of one page: where a token takes fewer, a
            block has more tokens, or padding.

    Raises:
        ConfigError: an unknown name, or a configuration that does not name its layers in a way known here.
    """
    kept = layers_known(config)
    if layout == "by_kind":
        return tuple(
            _group(name, layers, layers.count, block_tokens) for name, layers in zip(_names(kept), kept, strict=True)
        )
    attention = max((layers.num_bytes for layers in kept if layers.kind != "state"), default=1)
    if any(layers.kind == "state" for layers in kept):
        state = max(layers.num_bytes for layers in kept if layers.kind == "state")
        block_tokens = unified_block_tokens(state, attention, block_tokens)
    width = equal_layers([layers.count for layers in kept])
    page = width * block_tokens * attention
    groups = []
    for name, layers in zip(_names(kept), kept, strict=True):
        times = 1
        if layers.kind != "state" and attention % layers.num_bytes == 0:
            times = attention // layers.num_bytes
        group = replace(_group(name, layers, width, block_tokens * times), block_bytes=page)
        parts = range(-(-layers.count // width))
        groups += [replace(group, name=f"{name}{part}") if len(parts) > 1 else group for part in parts]
    return tuple(groups)


def layers_known(config: Mapping[str, Any] | str) -> tuple[Layers, ...]:
    """`layers_of` a configuration, the path of one, or a name in `SHAPES`.

    Raises:
        ConfigError: as `groups_of`.
    """
    try:
        return layers_of(_config(config))
    except ModelError as error:
        raise ConfigError(f"{error}; a model's groups are made from the config.json of a decoder, or of a named "
                          "shape") from error  # fmt: skip


def _names(kept: Sequence[Layers]) -> list[str]:
    """The kind of each, numbered where several are of one."""
    kinds = [layers.kind for layers in kept]
    return [kind if kinds.count(kind) == 1 else f"{kind}_{kinds[:at].count(kind)}" for at, kind in enumerate(kinds)]


def _group(name: str, layers: Layers, count: int, entries: int) -> KVGroup:
    """A group of `count` such layers, with blocks of so many entries, or of one state."""
    size = count * layers.num_bytes * (1 if layers.kind == "state" else entries)
    return KVGroup(name=name, kind=layers.kind, block_tokens=entries * layers.entry_tokens, block_bytes=size,
                   length=layers.length)  # fmt: skip


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
    """Floating-point operations of a model with full attention and states.

    Raises:
        ConfigError: an unknown name; no hidden_size; layers of other kinds, which Marconi's formula does not have.
    """
    try:
        config = with_defaults(_config(config))
        types, state_width = kinds_of(config), 0
        if "state" in types:
            linear = value_of(config, "linear_attn_config", dict, {})
            state_width = value_of(linear or config, "head_dim" if linear else "linear_key_head_dim", int)
        width = value_of(config, "hidden_size", int) if set(types) <= {"full", "state"} else 0
    except ModelError as error:
        raise ConfigError(f"{error}; Marconi's order needs it: choose another order") from error
    if not width:
        raise ConfigError(f"Marconi counts layers of full attention and states, found layers {sorted(set(types))}; "
                          "choose another order")  # fmt: skip
    return Flops(attention=types.count("full"), mlp=len(types), state=types.count("state"), width=width,
                 state_width=state_width)  # fmt: skip


def config_of(config: Mapping[str, Any] | str, ranks: int = 1) -> Mapping[str, Any]:
    """The configuration that a name or path stands for, as one of so many ranks has it.

    Raises:
        ConfigError: as `groups_of`; heads that do not divide over the ranks.
    """
    try:
        return of_rank(_config(config), ranks)
    except ModelError as error:
        raise ConfigError(f"{error}; --tp N counts one of N ranks") from error


def _config(config: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """A configuration, a named shape's, a file's or a hub repository's, of which nothing else is fetched."""
    if isinstance(config, str) and config not in SHAPES:
        try:
            path = Path(config)
            path = path if path.is_file() else find_checkpoint(config, ["config.json"]) / "config.json"
            config = read_object(path, ConfigError)
        except (ConfigError, ModelError) as error:
            raise ConfigError(f"no groups are known of {config!r}; give a config.json, a hub id or one of "
                              f"{', '.join(sorted(SHAPES))} ({error})") from error  # fmt: skip
    values = SHAPES[config] if isinstance(config, str) else config
    if not isinstance(values, Mapping):
        raise ConfigError(f"a model's configuration is a mapping, found {shown(values)}")
    return values


def _qwen(num_layers: int, width: int, num_kv_heads: int, num_value_heads: int) -> dict[str, Any]:
    """Gated delta rule in three of four layers."""
    return {
        "num_hidden_layers": num_layers, "hidden_size": width, "full_attention_interval": 4, "num_attention_heads": 16,
        "num_key_value_heads": num_kv_heads, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": num_value_heads, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip


def _deepseek_v3() -> dict[str, Any]:
    return {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


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
    "deepseek-v3": _deepseek_v3(),
    "deepseek-v3.2": _deepseek_v3() | {"index_head_dim": 128},
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
