"""Checkpoints of Hugging Face's layout: finding them, and reading weights that fit the config."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framework.errors import ModelError
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder, DecoderLayer
from framework.model.experts import RoutedExperts
from framework.model.hf_config import read_hf_config, token_ids
from framework.model.shard import WHOLE

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]
_INDEX = "model.safetensors.index.json"
_EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")
_SHOWN = 4


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
    config = read_hf_config(read_json(folder / "config.json"))
    if (folder / "generation_config.json").is_file():
        ends = token_ids(read_json(folder / "generation_config.json"), "eos_token_id")
        config = replace(config, eos_token_ids=ends or config.eos_token_ids)
    return config


def load_weights(decoder: Decoder, folder: Path) -> None:
    """Fill `decoder` from the safetensors files of `folder`, one tensor at a time; a shard reads its slices alone.

    Raises:
        ModelError: a tensor missing, unexpected, of another shape or no number; a file missing or damaged. The
            decoder's weights are then undefined.
    """
    targets = weight_targets(decoder)
    missing = set(targets)
    unexpected: list[str] = []
    for stored, found, read in _tensors(folder):
        name = stored.replace("model.language_model.", "model.", 1)  # of a model that also sees
        name = name if name.startswith(("model.", "lm_head.", "mtp.")) else f"model.{name}"
        if name not in targets:
            if not _known_extra(name, decoder.config):
                unexpected.append(name)
            continue
        target, shape = targets[name]
        if found != shape:
            raise ModelError(f"'{folder}': {name} has shape {found}, the config asks for {shape}")
        tensor = read(decoder.shard.piece(name, decoder.config))
        if (fused := _fused(name)) is not None:
            tensor = decoder.shard.cut(fused, tensor, decoder.config)
        if not tensor.is_floating_point():
            raise ModelError(f"'{folder}': {name} is {tensor.dtype}; quantised weights are not supported")
        target.copy_(tensor)
        missing.discard(name)
    if missing:
        raise ModelError(f"'{folder}' lacks {len(missing)} weights: {_some(sorted(missing))}")
    if unexpected:
        raise ModelError(
            f"'{folder}' has {len(unexpected)} weights that a {decoder.config.family} model of this "
            f"config has no use for: {_some(sorted(unexpected))}"
        )


def weight_targets(decoder: Decoder) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Hugging Face name -> (view into the decoder's fused weights, shape the checkpoint's tensor must have).

    The view of a shard is smaller than that shape: `Shard.piece` says which part of the tensor goes there.
    """
    views: dict[str, Tensor] = {"model.embed_tokens.weight": decoder.embedding, "model.norm.weight": decoder.norm}
    if not decoder.config.tie_word_embeddings:
        views["lm_head.weight"] = decoder.lm_head
    targets = {name: (view, tuple(view.shape)) for name, view in views.items()}
    family = decoder.config.family
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        targets |= {f"model.layers.{index}.{name}": target for name, target in _layer_targets(layer, family).items()}
    whole = {name: WHOLE.piece(name, decoder.config) for name in targets}
    return {
        name: (view, _fused_shape(name, decoder.config) or _whole_shape(shape, whole[name]))
        for name, (view, shape) in targets.items()
    }


def _fused(name: str) -> str | None:
    """The decoder's parameter that a tensor of Phi-3 is whole: q, k, v in one, or gate and up."""
    *_, module, kind = name.split(".")
    return {"qkv_proj": "qkv", "gate_up_proj": "gate_up"}.get(module) if kind == "weight" else None


def _fused_shape(name: str, config: ModelConfig) -> tuple[int, ...] | None:
    """The shape of such a tensor in the checkpoint."""
    rows = {
        "qkv": (config.num_heads + 2 * config.num_kv_heads) * config.head_dim,
        "gate_up": 2 * config.intermediate_size,
    }
    fused = _fused(name)
    return None if fused is None else (rows[fused], config.hidden_size)


def _whole_shape(shape: tuple[int, ...], piece: tuple[slice, ...]) -> tuple[int, ...]:
    """`shape` of a view, where a divided dimension has the size of the whole."""
    divided = [int(part.stop or size) for part, size in zip(piece, shape, strict=False)]
    return (*divided, *shape[len(divided) :])


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
    room, names = ("block_sparse_moe", ("w1", "w3", "w2")) if family == "mixtral" else ("mlp", _EXPERT_NAMES)
    views: dict[str, Tensor] = {f"{room}.gate.weight": experts.router}
    for index, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        parts = (*gate_up.chunk(2), down)
        views |= {f"{room}.experts.{index}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
    return views


def _layer_targets(layer: DecoderLayer, family: str) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    views = _norm_views(layer)
    if layer.delta is not None:
        own = layer.delta
        parts = zip(("qkv", "z", "b", "a"), torch.split(own.inputs, own.widths), strict=True)
        views |= {f"linear_attn.in_proj_{name}.weight": part for name, part in parts}
        views |= {
            "linear_attn.conv1d.weight": own.convolution,
            "linear_attn.dt_bias": own.decay_bias,
            "linear_attn.A_log": own.decay_log,
            "linear_attn.norm.weight": own.scale,
            "linear_attn.out_proj.weight": own.output,
            "mlp.gate_proj.weight": layer.gate_up.chunk(2)[0],
            "mlp.up_proj.weight": layer.gate_up.chunk(2)[1],
            "mlp.down_proj.weight": layer.down,
        }
        return {name: (view, tuple(view.shape)) for name, view in views.items()}
    heads, kv = layer.num_heads * layer.head_dim * (1 + layer.output_gate), layer.num_kv_heads * layer.head_dim
    if layer.sinks is not None:
        views["self_attn.sinks"] = layer.sinks
    mlp: tuple[Tensor | None, ...] = (None, None, None, None)
    if layer.experts is None:
        mlp = (layer.gate_up, layer.down, layer.gate_up_bias, layer.down_bias)
    else:
        views |= _expert_views(layer.experts, family)
    if family == "phi3":
        views |= {"self_attn.qkv_proj.weight": layer.qkv, "mlp.gate_up_proj.weight": layer.gate_up}
        views |= {"self_attn.o_proj.weight": layer.output, "mlp.down_proj.weight": layer.down}
        return {name: (view, tuple(view.shape)) for name, view in views.items()}
    fused = (
        ("weight", layer.qkv, layer.output, mlp[0], mlp[1]),
        ("bias", layer.qkv_bias, layer.output_bias, mlp[2], mlp[3]),
    )
    for kind, qkv, output, gate_up, down in fused:
        if qkv is not None:
            for name, part in zip("qkv", torch.split(qkv, [heads, kv, kv]), strict=True):
                views[f"self_attn.{name}_proj.{kind}"] = part
        if output is not None:
            views[f"self_attn.o_proj.{kind}"] = output
        if gate_up is not None:
            views[f"mlp.gate_proj.{kind}"], views[f"mlp.up_proj.{kind}"] = gate_up.chunk(2)
        if down is not None:
            views[f"mlp.down_proj.{kind}"] = down
    targets: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        name: (view, tuple(view.shape)) for name, view in views.items()
    }
    if layer.qk_norm is not None:
        # One row of the checkpoint fills the rows of all heads.
        shape = (layer.head_dim,)
        targets["self_attn.q_norm.weight"] = (layer.qk_norm[: layer.num_heads], shape)
        targets["self_attn.k_norm.weight"] = (layer.qk_norm[layer.num_heads :], shape)
    return targets


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's file.

    Raises:
        ModelError: unreadable, no JSON, or no object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"'{path}' holds no JSON object but a {type(found).__name__}")
    return found


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub has no model '{name}', or it is private; check the id, or `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model '{name}' is not in the local Hugging Face cache and the hub cannot be reached; "
            f"run `hf download {name}` where there is a network, or give a local folder"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"model '{name}' cannot be downloaded ({reason}); give a local folder instead") from error


def _tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...], Callable[[tuple[slice, ...]], Tensor]]]:
    """Name and shape of each tensor, and how to read a piece of it; () reads it whole."""
    from safetensors import SafetensorError, safe_open

    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, tuple(file.get_slice(name).get_shape()), partial(_read, path, file, name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"'{path}' is damaged or no safetensors file: {error}") from error


def _read(path: Path, file: Any, name: str, piece: tuple[slice, ...]) -> Tensor:
    from safetensors import SafetensorError

    try:
        tensor: Tensor = file.get_slice(name)[piece] if piece else file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"'{path}' is damaged: {name} cannot be read: {error}") from error
    return tensor


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        found = read_json(folder / _INDEX).get("weight_map", {})
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
            raise ModelError(f"'{folder / _INDEX}': weight_map must be an object of file names")
        named = set(found.values())
        odd = [name for name in named if Path(name).name != name]
        if odd or not named:
            raise ModelError(
                f"'{folder / _INDEX}' names no files of its own folder: {_some(odd) or 'weight_map is empty'}"
            )
        absent = sorted(name for name in named if not (folder / name).is_file())
        if absent:
            raise ModelError(f"'{folder}' lacks {len(absent)} of {len(named)} weight files: {_some(absent)}")
        return [folder / name for name in sorted(named)]
    files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
    files = files or sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if not files:
        raise ModelError(f"'{folder}' holds no *.safetensors; convert other formats with transformers' save_pretrained")
    return files


def _known_extra(name: str, config: ModelConfig) -> bool:
    """Whether a tensor without a place is harmless: a tied head stored twice, a table that old versions saved, or of
    Qwen3.5 what reads images or drafts tokens."""
    if config.family == "qwen3_5_text" and name.startswith(("model.visual.", "mtp.")):
        return True
    return (name == "lm_head.weight" and config.tie_word_embeddings) or name.endswith("rotary_emb.inv_freq")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(str(name) for name in names[:_SHOWN]) + more
