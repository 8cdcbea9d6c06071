"""Weights of a checkpoint of Hugging Face's layout, read into a decoder that they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from framework.errors import ModelError
from framework.files.jsonl import read_object
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder, DecoderLayer
from framework.model.delta import GatedDelta
from framework.model.experts import RoutedExperts
from framework.model.latent import LatentAttention

_INDEX = "model.safetensors.index.json"
_SHOWN = 4


def load_weights(decoder: Decoder, folder: Path) -> None:
    """Fill `decoder` from the safetensors files of `folder`; a part reads one whole layer after another and cuts it.

    Raises:
        ModelError: a tensor missing, unexpected, of another shape or no number; a file missing or damaged. The
            decoder's weights are then undefined.
    """
    config, stored = decoder.config, _stored(folder)
    whole = decoder if decoder.shard.size == 1 else Decoder(config, dtype=decoder.dtype, device="meta")
    wanted = weight_targets(whole).keys()
    if missing := sorted(wanted - stored.keys()):
        raise ModelError(f"'{folder}' lacks {len(missing)} weights: {_some(missing)}")
    if unexpected := [name for name in sorted(stored.keys() - wanted) if not _known_extra(name, config)]:
        raise ModelError(
            f"'{folder}' has {len(unexpected)} weights that a {config.family} model of this "
            f"config has no use for: {_some(unexpected)}"
        )
    parameters = dict(decoder.named_parameters())
    for prefix, module in (("", whole), *((f"layers.{index}.", layer) for index, layer in enumerate(whole.layers))):
        if whole is decoder:
            _fill(_targets_of(module, prefix, config), stored)
            continue
        module.to_empty(device="cpu", recurse=bool(prefix))
        _fill(_targets_of(module, prefix, config), stored)
        for name, weight in module.named_parameters(recurse=bool(prefix)):
            if prefix + name in parameters:  # a tied head is the embedding
                parameters[prefix + name].copy_(decoder.shard.cut(name, weight, config))
        module.to("meta")


Target = tuple[Tensor, tuple[int, ...]]
"""A view into the decoder's fused weights, and the shape that the checkpoint's tensor must have."""


def weight_targets(decoder: Decoder) -> dict[str, Target]:
    """Hugging Face name -> where in a whole decoder its tensor goes."""
    targets = _targets_of(decoder, "", decoder.config)
    for index, layer in enumerate(decoder.layers):
        targets |= _targets_of(layer, f"layers.{index}.", decoder.config)
    return targets


def _targets_of(module: nn.Module, prefix: str, config: ModelConfig) -> dict[str, Target]:
    """The targets of one layer; or of the decoder's own weights, those of its layers left out."""
    if isinstance(module, DecoderLayer):
        return {f"model.{prefix}{name}": target for name, target in _layer_targets(module, config.family).items()}
    assert isinstance(module, Decoder)
    views: dict[str, Tensor] = {"model.embed_tokens.weight": module.embedding, "model.norm.weight": module.norm}
    if not config.tie_word_embeddings:
        views["lm_head.weight"] = module.lm_head
    return {name: (view, tuple(view.shape)) for name, view in views.items()}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a checkpoint: `file` is open, and calls it `name`."""

    path: Path
    file: Any
    name: str


def _fill(targets: Mapping[str, Target], stored: Mapping[str, _Stored]) -> None:
    from safetensors import SafetensorError

    for name, (view, shape) in targets.items():
        found = stored[name]
        try:
            tensor = found.file.get_tensor(found.name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"'{found.path}' is damaged: {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(f"'{found.path}': {name} has shape {tuple(tensor.shape)}, the config asks for {shape}")
        if not tensor.is_floating_point():
            raise ModelError(f"'{found.path}': {name} is {tensor.dtype}; quantised weights are not supported")
        view.copy_(tensor)


def _norm_views(layer: DecoderLayer) -> dict[str, Tensor]:
    """The norms of a layer. With four of them "post attention" ends the attention, not begins the MLP."""
    views: dict[str, Tensor] = {"input_layernorm.weight": layer.input_norm}
    if layer.attention_end_norm is None or layer.mlp_end_norm is None:
        return views | {"post_attention_layernorm.weight": layer.post_norm}
    return views | {
        "post_attention_layernorm.weight": layer.attention_end_norm,
        "pre_feedforward_layernorm.weight": layer.post_norm,
        "post_feedforward_layernorm.weight": layer.mlp_end_norm,
    }


def _expert_views(experts: RoutedExperts, family: str) -> dict[str, Tensor]:
    """Routed experts by the family's names: gpt-oss stores all as one, transposed; the others each alone."""
    if family == "gpt_oss":
        assert experts.router_bias is not None
        assert experts.gate_up_bias is not None
        assert experts.down_bias is not None
        return {
            "mlp.router.weight": experts.router,
            "mlp.router.bias": experts.router_bias,
            "mlp.experts.gate_up_proj": experts.gate_up.transpose(1, 2),
            "mlp.experts.gate_up_proj_bias": experts.gate_up_bias,
            "mlp.experts.down_proj": experts.down.transpose(1, 2),
            "mlp.experts.down_proj_bias": experts.down_bias,
        }
    room, names = "mlp", ("gate_proj", "up_proj", "down_proj")
    if family == "mixtral":
        room, names = "block_sparse_moe", ("w1", "w3", "w2")
    views: dict[str, Tensor] = {f"{room}.gate.weight": experts.router}
    if experts.choice_bias is not None:
        views[f"{room}.gate.e_score_correction_bias"] = experts.choice_bias
    for index, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        parts = (*gate_up.chunk(2), down)
        views |= {f"{room}.experts.{index}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
    return views


def _layer_targets(layer: DecoderLayer, family: str) -> dict[str, Target]:
    views = _norm_views(layer)
    if layer.delta is not None:
        views |= _delta_views(layer.delta)
    elif layer.latent is not None:
        views |= _latent_views(layer.latent)
    else:
        views |= _attention_views(layer, family)
    if layer.experts is not None:
        views |= _expert_views(layer.experts, family)
    if layer.has_mlp:
        shared = "mlp.shared_experts" if layer.shared_gate is None else "mlp.shared_expert"
        views |= _mlp_views(layer, family, "mlp" if layer.experts is None else shared)
    if layer.shared_gate is not None:
        views["mlp.shared_expert_gate.weight"] = layer.shared_gate
    targets: dict[str, Target] = {name: (view, tuple(view.shape)) for name, view in views.items()}
    if layer.delta is None and layer.latent is None and layer.qk_norm is not None:
        # One row of the checkpoint fills the rows of all heads.
        shape = (layer.head_dim,)
        targets["self_attn.q_norm.weight"] = (layer.qk_norm[: layer.num_heads], shape)
        targets["self_attn.k_norm.weight"] = (layer.qk_norm[layer.num_heads :], shape)
    return targets


def _attention_views(layer: DecoderLayer, family: str) -> dict[str, Tensor]:
    views: dict[str, Tensor] = {} if layer.sinks is None else {"self_attn.sinks": layer.sinks}
    heads, kv = layer.num_heads * layer.head_dim * (1 + layer.output_gate), layer.num_kv_heads * layer.head_dim
    for kind, qkv, output in (("weight", layer.qkv, layer.output), ("bias", layer.qkv_bias, layer.output_bias)):
        if qkv is not None and family == "phi3":
            views[f"self_attn.qkv_proj.{kind}"] = qkv
        elif qkv is not None:
            for name, part in zip("qkv", torch.split(qkv, [heads, kv, kv]), strict=True):
                views[f"self_attn.{name}_proj.{kind}"] = part
        if output is not None:
            views[f"self_attn.o_proj.{kind}"] = output
    return views


def _delta_views(delta: GatedDelta) -> dict[str, Tensor]:
    widths = dict(zip(("qkv", "z", "b", "a"), delta.widths, strict=True))
    if delta.config.by_key_head:
        widths = {"qkvz": widths["qkv"] + widths["z"], "ba": widths["b"] + widths["a"]}
    parts = zip(widths, torch.split(delta.inputs, [*widths.values()]), strict=True)
    return {f"linear_attn.in_proj_{name}.weight": part for name, part in parts} | {
        "linear_attn.conv1d.weight": delta.convolution,
        "linear_attn.dt_bias": delta.decay_bias,
        "linear_attn.A_log": delta.decay_log,
        "linear_attn.norm.weight": delta.scale,
        "linear_attn.out_proj.weight": delta.output,
    }


def _latent_views(latent: LatentAttention) -> dict[str, Tensor]:
    rank, rest = latent.widths[0], sum(latent.widths[1:])
    views: dict[str, Tensor] = {
        f"self_attn.{'q_b_proj' if rank else 'q_proj'}.weight": latent.queries,
        "self_attn.kv_a_layernorm.weight": latent.latent_norm,
        "self_attn.kv_b_proj.weight": latent.expansion.flatten(0, 1),
    }
    if latent.query_norm is not None:
        views["self_attn.q_a_layernorm.weight"] = latent.query_norm
    biases = ("bias", latent.inputs_bias, latent.output_bias)
    for kind, inputs, output in (("weight", latent.inputs, latent.output), biases):
        if inputs is not None:
            queries, views[f"self_attn.kv_a_proj_with_mqa.{kind}"] = torch.split(inputs, [rank, rest])
            views |= {f"self_attn.q_a_proj.{kind}": queries} if rank else {}
        if output is not None:
            views[f"self_attn.o_proj.{kind}"] = output
    if (indexer := latent.indexer) is not None:
        views |= {
            "self_attn.indexer.wq_b.weight": indexer.queries,
            "self_attn.indexer.wk.weight": indexer.key,
            "self_attn.indexer.k_norm.weight": indexer.key_norm,
            "self_attn.indexer.k_norm.bias": indexer.key_norm_bias,
            "self_attn.indexer.weights_proj.weight": indexer.weights,
        }
    return views


def _mlp_views(layer: DecoderLayer, family: str, room: str) -> dict[str, Tensor]:
    views: dict[str, Tensor] = {}
    for kind, gate_up, down in (("weight", layer.gate_up, layer.down), ("bias", layer.gate_up_bias, layer.down_bias)):
        if gate_up is not None and family == "phi3":
            views[f"{room}.gate_up_proj.{kind}"] = gate_up
        elif gate_up is not None:
            views[f"{room}.gate_proj.{kind}"], views[f"{room}.up_proj.{kind}"] = gate_up.chunk(2)
        if down is not None:
            views[f"{room}.down_proj.{kind}"] = down
    return views


def _stored(folder: Path) -> dict[str, _Stored]:
    """Every tensor of the folder's weight files, by the name that a model of text gives it."""
    from safetensors import SafetensorError, safe_open

    found = {}
    for path in _weight_files(folder):
        try:
            file: Any = safe_open(path, framework="pt", device="cpu")
            for stored in file.keys():  # noqa: SIM118
                name = stored.replace("model.language_model.", "model.", 1)  # of a model that also sees
                name = name if name.startswith(("model.", "lm_head.", "mtp.")) else f"model.{name}"
                found[name] = _Stored(path, file, stored)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"'{path}' is damaged or no safetensors file: {error}") from error
    return found


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        found = read_object(folder / _INDEX, ModelError).get("weight_map")
        if not found or not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
            raise ModelError(f"'{folder / _INDEX}': weight_map must be an object of file names")
        named = sorted(set(found.values()))
        if odd := [name for name in named if Path(name).name != name]:
            raise ModelError(f"'{folder / _INDEX}' names no files of its own folder: {_some(odd)}")
        if absent := [name for name in named if not (folder / name).is_file()]:
            raise ModelError(f"'{folder}' lacks {len(absent)} of {len(named)} weight files: {_some(absent)}")
        return [folder / name for name in named]
    files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
    files = files or sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if not files:
        raise ModelError(f"'{folder}' holds no *.safetensors; convert other formats with transformers' save_pretrained")
    return files


def _known_extra(name: str, config: ModelConfig) -> bool:
    """Whether a tensor without a place is harmless: a tied head stored twice, a table that old versions saved, of
    Qwen3-Next and 3.5 what reads images or drafts tokens, of DeepSeek the layer that drafts, behind the last one."""
    if config.latent is not None and name.startswith(f"model.layers.{config.num_layers}."):
        return True
    if config.recurrent is not None and name.startswith(("model.visual.", "mtp.")):
        return True
    return (name == "lm_head.weight" and config.tie_word_embeddings) or name.endswith("rotary_emb.inv_freq")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(str(name) for name in names[:_SHOWN]) + more
